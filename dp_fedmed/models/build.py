"""From `model._target_` to a network whose layers DP-SGD accepts, with reproducible weights."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from dp_fedmed.config import ModelConfig
from dp_fedmed.config.named_code import import_named
from dp_fedmed.errors import ConfigError
from dp_fedmed.models import torchvision_networks
from dp_fedmed.privacy.streams.reproducible import derive_seed

logger = logging.getLogger(__name__)


def build_model(
    config: ModelConfig, *, input_shape: Sequence[int], num_classes: int, seed: int
) -> nn.Module:
    """The configured network, with weights that depend on the seed only.

    `input_shape` and `num_classes` are passed to the target if it has parameters of those names;
    everything in `model.args` is passed as it is.

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
    """How many numbers a client's update of the configured network has.

    Layers that DP-SGD cannot use are counted as they are: what replaces them has as many weights.

    >>> count_floats(ModelConfig(), input_shape=(30,), num_classes=2, seed=0)
    1058

    Raises:
        ConfigError: naming `model._target_` or an argument.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "init") % 2**63)
        state = _made(config, input_shape, num_classes).state_dict()
    return sum(tensor.numel() for tensor in state.values() if tensor.is_floating_point())


def _made(config: ModelConfig, input_shape: Sequence[int], num_classes: int) -> nn.Module:
    """What the target makes of the arguments that it takes."""
    target = _import(config._target_)
    from_torchvision = torchvision_networks.is_torchvision(target)
    if from_torchvision:
        offered = torchvision_networks.arguments(target, input_shape, num_classes)
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
        torchvision_networks.fit_channels(model, input_shape[0])
    return model


def layer_problems(model: nn.Module) -> list[str]:
    """Why DP-SGD cannot use this model, one sentence a layer; empty when it can."""
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


# Leaves that carry no batch statistics and that Opacus supports: no need to import its validator.
_FINE = (
    *(nn.Linear, nn.Conv1d, nn.Conv2d, nn.ConvTranspose2d, nn.GroupNorm, nn.LayerNorm),
    *(nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Identity, nn.Flatten, nn.Dropout),
    *(nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d),
)


def _surely_fine(model: nn.Module) -> bool:
    return all(
        type(module) in _FINE
        or (any(module.children()) and not any(True for _ in module.parameters(recurse=False)))
        for module in model.modules()
    )


def _import(path: str) -> Callable[..., Any]:
    try:
        return import_named("model._target_", path)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"model._target_={path} cannot be imported ({error}): install its package, or put it "
            "on PYTHONPATH"
        ) from error


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
