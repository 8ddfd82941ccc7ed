"""The U-Net keeps any image size."""

from __future__ import annotations

import pytest
import torch

from dp_fedmed.config import ModelConfig
from dp_fedmed.models import build_model, layer_problems


@pytest.mark.parametrize("size", [(16, 16), (17, 23), (31, 12)])
def test_unet_keeps_any_image_size(size: tuple[int, int]) -> None:
    config = ModelConfig(_target_="dp_fedmed.models.UNet", args={"channels": [4, 8, 16]})
    model = build_model(config, input_shape=(1, *size), num_classes=2, seed=0)
    assert model(torch.zeros(2, 1, *size)).shape == (2, 2, *size)
    assert layer_problems(model) == []
