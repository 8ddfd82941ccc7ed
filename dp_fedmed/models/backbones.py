"""Frozen torchvision backbones that turn images into maps of patch features.

Nothing here is trained or sent: every client has the same public weights. Weights come from a file,
from torch hub's folder, or are random when that is asked for by name; nothing is downloaded unless
torchvision's own mechanism is asked to, and no pickle is executed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dp_fedmed.errors import ConfigError
from dp_fedmed.models.frozen import FilterBank
from dp_fedmed.privacy.streams.reproducible import derive_seed

#: The layers that are used unless others are named.
DEFAULT_LAYERS: dict[str, tuple[str, ...]] = {
    "wide_resnet50_2": ("layer2", "layer3"),
    "resnet18": ("layer2", "layer3"),
    "mobilenet_v2": ("features.13", "features.17"),
    "filters": ("0",),
    "tiny": ("1", "2"),
}
WITHOUT_WEIGHTS = ("filters", "tiny")
#: Asked for by this name, weights are random: features without meaning, for tests.
RANDOM = "random"
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Backbone(nn.Module):
    """A frozen network that returns the outputs of some of its layers.

    Takes uint8 images (n, 1 or 3, H, W) and normalises them by ImageNet's public constants; grey
    images are repeated over the channels. Batch statistics are those of the weights, so that no
    image's features depend on another image.

    >>> backbone = Backbone(tiny_network(), layers=("1", "2"))
    >>> [tuple(maps.shape) for maps in backbone(torch.zeros(2, 1, 32, 32, dtype=torch.uint8))]
    [(2, 8, 16, 16), (2, 16, 8, 8)]
    """

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, *, layers: Sequence[str]) -> None:
        super().__init__()
        self.network = network
        self.layers = tuple(layers)
        self._maps: dict[str, Tensor] = {}
        found = dict(network.named_modules())
        unknown = [name for name in self.layers if name not in found or not name]
        if unknown or not self.layers:
            named = ", ".join([name for name in found if name.count(".") <= 1 and name][:30])
            raise ConfigError(
                f"backbone layers {list(self.layers)}: {unknown or 'none'} not in the network; it "
                f"has {named}"
            )
        for name in self.layers:
            found[name].register_forward_hook(partial(self._keep, name))
        last = max(self.layers, key=lambda name: list(found).index(name))
        found[last].register_forward_hook(_stop)
        self.register_buffer("mean", torch.tensor(_MEAN)[:, None, None], persistent=False)
        self.register_buffer("std", torch.tensor(_STD)[:, None, None], persistent=False)
        self.requires_grad_(False)
        super().train(False)

    def train(self, mode: bool = True) -> Backbone:
        """Stays in evaluation mode, whatever is asked."""
        return self

    @torch.no_grad()
    def forward(self, images: Tensor) -> list[Tensor]:
        """One (n, channels, h, w) map per layer, in the order of `layers`."""
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3):
            raise ValueError(
                f"images must be uint8 of shape (n, 1 or 3, H, W), got {images.dtype} of "
                f"{tuple(images.shape)}"
            )
        x = (images.float().div_(255.0).expand(-1, 3, -1, -1) - self.mean) / self.std
        with contextlib.suppress(_EnoughError):
            self.network(x)
        maps, self._maps = self._maps, {}
        return [maps[name] for name in self.layers]

    def _keep(self, name: str, module: nn.Module, inputs: Any, output: Tensor) -> None:
        self._maps[name] = output


class _EnoughError(Exception):
    """The last wanted layer was computed."""


def _stop(module: nn.Module, inputs: Any, output: Tensor) -> None:
    raise _EnoughError


def make_backbone(
    name: str,
    *,
    weights: str | None = None,
    layers: Sequence[str] | None = None,
    seed: int = 0,
) -> Backbone:
    """A frozen backbone by name.

    Args:
        name: ``wide_resnet50_2``, ``resnet18`` or ``mobilenet_v2``; ``filters``, fixed filters that
            need no weights; or ``tiny``, always random, for tests.
        weights: a file of torchvision's weights; ``random``; or None for torchvision's default
            weights, from torch hub's folder or, where there is a network, by download.
        layers: names of modules of the network; those of `DEFAULT_LAYERS` unless given.
        seed: of random weights.

    Raises:
        ConfigError: for an unknown name or layer, or weights that cannot be had, with the remedy.

    >>> make_backbone("tiny").layers
    ('1', '2')
    """
    if name not in DEFAULT_LAYERS:
        raise ConfigError(f"backbone={name} is not known: use {', '.join(DEFAULT_LAYERS)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "backbone") % 2**63)
        network = _random_network(name)
    if name not in WITHOUT_WEIGHTS and weights != RANDOM:
        try:
            state = _hub_weights(name) if weights is None else _file_weights(Path(weights), name)
        except ConfigError as error:
            error.path = weights  # where the person is who may see it
            raise
        _load(network, state, name, weights)
    return Backbone(network, layers=layers or DEFAULT_LAYERS[name])


class FilterMaps(FilterBank):
    """Brightness, edges, spread and envelopes at fixed scales, as maps of a quarter of the size.

    >>> FilterMaps((0.7, 1.5, 3.0, 6.0), reduce=4)(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 192, 8, 8])
    """

    def forward(self, x: Tensor) -> Tensor:
        """(n, channels, height, width) to maps of features."""
        return super().forward(x).movedim(-1, 1)


def tiny_network() -> nn.Sequential:
    """Three small convolutions, for tests that need shapes and not meaning."""
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1), nn.ReLU()),
        nn.Sequential(nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU()),
        nn.Sequential(nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU()),
    )


def _random_network(name: str) -> Any:
    if name == "tiny":
        return tiny_network()
    if name == "filters":
        return nn.Sequential(FilterMaps((0.7, 1.5, 3.0, 6.0), reduce=4))
    from torchvision import models

    return models.get_model(name, weights=None)


def _hub_weights(name: str) -> Any:
    """The default weights of torchvision, from torch hub's folder or downloaded and checked."""
    from torchvision import models

    chosen = models.get_model_weights(name).DEFAULT
    # The older weights are the ones that offline packages carry.
    candidates = [chosen, *(w for w in models.get_model_weights(name) if w is not chosen)]
    folder = Path(torch.hub.get_dir()) / "checkpoints"
    for candidate in candidates:
        file = folder / candidate.url.rpartition("/")[2]
        if file.is_file():
            return _file_weights(file, name)
    try:
        return torch.hub.load_state_dict_from_url(
            chosen.url, progress=False, check_hash=True, weights_only=True
        )
    except (OSError, RuntimeError) as error:
        wanted = " or ".join(c.url.rpartition("/")[2] for c in candidates)
        raise ConfigError(
            f"backbone={name}: no weights in torch hub's folder and no network to fetch them. Put "
            f"{wanted} into $TORCH_HOME/hub/checkpoints, or give the file's path as weights, or "
            f"weights={RANDOM} for features without meaning"
        ) from error


def _file_weights(file: Path, name: str) -> Any:
    file = file.expanduser()
    if not file.is_file():
        raise ConfigError(
            f"backbone={name}: weights={file.name} is not a file: give the path of a .pth or "
            f".safetensors file, or weights={RANDOM} for features without meaning"
        )
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            return dict(load_file(file))
        return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch and safetensors raise many kinds for a bad file
        raise ConfigError(
            f"backbone={name}: weights={file.name} is not a file of tensors "
            f"({type(error).__name__}): give torchvision's own .pth file or a .safetensors file"
        ) from error


def _load(network: nn.Module, state: Any, name: str, weights: str | None) -> None:
    shown = "torch hub's" if weights is None else Path(weights).name
    try:
        network.load_state_dict(state)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"backbone={name}: the weights ({shown}) are not those of {name}: "
            f"{str(error).splitlines()[0]}"
        ) from error
