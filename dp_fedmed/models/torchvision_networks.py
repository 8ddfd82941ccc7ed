"""torchvision's own classifiers, fitted to the data's channels, size and classes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

#: These return a tuple in training unless their second head is left out.
_TWO_HEADS = ("googlenet", "inception_v3")


def is_torchvision(target: Callable[..., Any]) -> bool:
    """Whether this makes one of torchvision's classifiers.

    >>> from torchvision.models import resnet18
    >>> is_torchvision(resnet18), is_torchvision(nn.Linear)
    (True, False)
    """
    return str(getattr(target, "__module__", "")).startswith("torchvision.models.")


def arguments(
    target: Callable[..., Any], input_shape: Sequence[int], num_classes: int
) -> dict[str, Any]:
    """What the builder must be told about the data; its signature hides it in `**kwargs`."""
    name = getattr(target, "__name__", "")
    given: dict[str, Any] = {"num_classes": num_classes}
    if name.startswith("vit_") and len(input_shape) == 3:
        given["image_size"] = input_shape[-1]
    if name in _TWO_HEADS:
        given |= {"aux_logits": False, "init_weights": True}
    return given


def fit_channels(model: nn.Module, channels: int) -> None:
    """Let the first convolution take so many channels, in place.

    Its weights are spread over them, so that a grey image gives what its copy in three channels
    would.
    """
    for name, module in model.named_modules():
        if not isinstance(module, nn.Conv2d):
            continue
        if module.in_channels == channels or module.groups != 1:
            return
        fitted = nn.Conv2d(
            channels,
            module.out_channels,
            module.kernel_size,  # type: ignore[arg-type]
            module.stride,  # type: ignore[arg-type]
            module.padding,  # type: ignore[arg-type]
            module.dilation,  # type: ignore[arg-type]
            bias=module.bias is not None,
        )
        with torch.no_grad():
            spread = module.weight.sum(dim=1, keepdim=True) / channels
            fitted.weight.copy_(spread.expand_as(fitted.weight))
            if module.bias is not None and fitted.bias is not None:
                fitted.bias.copy_(module.bias)
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, fitted)
        return
