"""From `model._target_` to a network whose layers DP-SGD accepts, with reproducible weights."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from dp_fedmed.config import ModelConfig
from dp_fedmed.config.named_code import import_named
from dp_fedmed.errors import ConfigError
from dp_fedmed.privacy.streams.reproducible import derive_seed

logger = logging.getLogger(__name__)

#: These return a tuple in training unless their second head is left out.
_TWO_HEADS = ("googlenet", "inception_v3")
# Leaves that carry no batch statistics and that Opacus supports: no need to import its validator.
_FINE = (
    *(nn.Linear, nn.Conv1d, nn.Conv2d, nn.ConvTranspose2d, nn.GroupNorm, nn.LayerNorm),
    *(nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Identity, nn.Flatten, nn.Dropout),
    *(nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d),
)


def build_model(
    config: ModelConfig, *, input_shape: Sequence[int], num_classes: int, seed: int
) -> nn.Module:
    """The configured network, with weights that depend on the seed only.

    `input_shape` and `num_classes` are passed to the target if it has parameters of those names;
    everything in `model.args` is passed as it is. torchvision's classifiers are fitted to the
    data's channels, size and classes.

    Raises:
        ConfigError: naming `model._target_`, an argument, or a layer that DP-SGD cannot use.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "init") % 2**63)
        model = _made(config, input_shape, num_classes)
        model = _replace_layers(model, fix=config.fix)
        for module in model.modules():
            if getattr(module, "inplace", False):
                module.inplace = False  # type: ignore[assignment]  # hooks need what an activation would overwrite
        _check_output(model, config, tuple(input_shape), num_classes)
    return model


def count_floats(
    config: ModelConfig, *, input_shape: Sequence[int], num_classes: int, seed: int
) -> int:
    """The number of floats in a client's update of the configured network.

    Layers that DP-SGD cannot use are counted as they are: what replaces them has as many weights.

    >>> count_floats(ModelConfig(), input_shape=(30,), num_classes=2, seed=0)
    1058
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "init") % 2**63)
        state = _made(config, input_shape, num_classes).state_dict()
    return sum(tensor.numel() for tensor in state.values() if tensor.is_floating_point())


def _made(config: ModelConfig, input_shape: Sequence[int], num_classes: int) -> nn.Module:
    """Calls the target with the arguments that it takes."""
    try:
        target = import_named("model._target_", config._target_)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"model._target_={config._target_} cannot be imported ({error}): install its package, "
            "or put it on PYTHONPATH"
        ) from error
    from_torchvision = str(getattr(target, "__module__", "")).startswith("torchvision.models.")
    offered: dict[str, Any] = {"num_classes": num_classes}
    if from_torchvision:  # its signatures hide what they take in **kwargs
        name = getattr(target, "__name__", "")
        if name.startswith("vit_") and len(input_shape) == 3:
            offered["image_size"] = input_shape[-1]
        if name in _TWO_HEADS:
            offered |= {"aux_logits": False, "init_weights": True}
    else:
        named = inspect.signature(target).parameters
        known = {"input_shape": tuple(input_shape), "num_classes": num_classes}
        offered = {name: value for name, value in known.items() if name in named}
    try:
        model = target(**{**offered, **config.args})
    except Exception as error:  # the user's own code: whatever it raises is named
        raise ConfigError(
            f"model._target_={config._target_}: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"model._target_={config._target_} made a {type(model).__name__}, not a torch.nn.Module"
        )
    if from_torchvision and len(input_shape) == 3:
        _fit_channels(model, input_shape[0])
    return model


def _fit_channels(model: nn.Module, channels: int) -> None:
    """Changes the first convolution in place to take this number of channels.

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


def layer_problems(model: nn.Module) -> list[str]:
    """Why DP-SGD cannot use this model, one sentence per layer; empty when it can."""
    from opacus.validators import ModuleValidator

    model.train()  # the validator speaks of training only
    problems = []
    for name, module in model.named_modules():
        errors = ModuleValidator.validate(module, strict=False)
        if errors and not any(module.children()):
            problems.append(f"layer {name!r} ({type(module).__name__}): {errors[0]}")
    return problems or [str(error) for error in ModuleValidator.validate(model, strict=False)]


def _replace_layers(model: nn.Module, *, fix: bool) -> nn.Module:
    if _surely_fine(model):
        return model
    from opacus.validators import ModuleValidator

    problems = layer_problems(model)
    if not problems:
        return model
    if not fix:
        raise ConfigError(
            f"model.fix=false, but {'; '.join(problems[:3])}. Set model.fix=true to have it "
            "replaced, or use GroupNorm"
        )
    fixed: nn.Module = ModuleValidator.fix(model)
    for name, module in model.named_modules():
        norm = fixed.get_submodule(name)
        if isinstance(module, nn.BatchNorm1d) and isinstance(norm, nn.GroupNorm):
            # Opacus makes up to 32 groups: of one or two features each, little would be left.
            sizes = (n for n in range(4, norm.num_channels) if norm.num_channels % n == 0)
            norm.num_groups = norm.num_channels // next(sizes, norm.num_channels)
    remaining = layer_problems(fixed)
    if remaining:
        raise ConfigError(f"model.fix=true cannot replace {'; '.join(remaining)}")
    layers = ", ".join(problem.split(":")[0].removeprefix("layer ") for problem in problems[:3])
    more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
    logger.info("model.fix=true replaced %s%s by layers that keep records apart", layers, more)
    return fixed


def _surely_fine(model: nn.Module) -> bool:
    return all(
        type(module) in _FINE
        or (any(module.children()) and not any(True for _ in module.parameters(recurse=False)))
        for module in model.modules()
    )


def _check_output(
    model: nn.Module, config: ModelConfig, input_shape: tuple[int, ...], num_classes: int
) -> None:
    """One record of zeros must give one logit per class (and pixel)."""
    model.eval()
    try:
        with torch.no_grad():
            shape = tuple(model(torch.zeros(1, *input_shape)).shape)
    except Exception as error:  # the user's own code: whatever it raises is named
        raise ConfigError(
            f"model._target_={config._target_} cannot take a record of shape {input_shape}: "
            f"{type(error).__name__}: {error}"
        ) from error
    if shape[:2] != (1, num_classes):
        raise ConfigError(
            f"model._target_={config._target_} gives outputs of shape {shape[1:]}, but the data "
            f"have {num_classes} classes: set model.args (for example "
            f"model.args.num_classes={num_classes}) so that they fit"
        )
