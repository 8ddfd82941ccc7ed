"""Networks: shapes, and layers that DP-SGD accepts."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dp_fedmed.config import ModelConfig
from dp_fedmed.models import build_model, layer_problems


def build(target: str, *, fix: bool = True, seed: int = 0, **args: object) -> nn.Module:
    config = ModelConfig(_target_=target, args=args, fix=fix)
    return build_model(config, input_shape=(1, 16, 16), num_classes=3, seed=seed)


@pytest.mark.parametrize("name", ["MLP", "SmallCNN", "resnet18"])
def test_classifiers_give_one_logit_per_class_and_suit_dp_sgd(name: str) -> None:
    model = build(f"dp_fedmed.models.{name}")
    assert model(torch.zeros(2, 1, 16, 16)).shape == (2, 3)
    assert layer_problems(model) == []


def test_resnet18_takes_large_and_coloured_images() -> None:
    config = ModelConfig(_target_="dp_fedmed.models.resnet18")
    for shape in ((3, 64, 64), (1, 64, 64)):
        assert build_model(config, input_shape=shape, num_classes=2, seed=0)


@pytest.mark.parametrize("size", [(16, 16), (17, 23), (31, 12)])
def test_unet_keeps_any_image_size(size: tuple[int, int]) -> None:
    config = ModelConfig(_target_="dp_fedmed.models.UNet", args={"channels": [4, 8, 16]})
    model = build_model(config, input_shape=(1, *size), num_classes=2, seed=0)
    assert model(torch.zeros(2, 1, *size)).shape == (2, 2, *size)
    assert layer_problems(model) == []
