"""Networks that DP-SGD accepts, and `build_model`, which makes one from the configuration."""

from dp_fedmed.models.build import build_model, layer_problems
from dp_fedmed.models.frozen import (
    FilterBankSegmenter,
    FourierLinear,
    ScatteringLinear,
    compact_linear,
)
from dp_fedmed.models.networks import MLP, SmallCNN, UNet, resnet18, small_network

__all__ = [
    "MLP",
    "FilterBankSegmenter",
    "FourierLinear",
    "ScatteringLinear",
    "SmallCNN",
    "UNet",
    "build_model",
    "compact_linear",
    "layer_problems",
    "resnet18",
    "small_network",
]
