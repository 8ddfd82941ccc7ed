"""torchvision's own classifiers train in private styles, with nothing said about their classes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dp_fedmed.config import ModelConfig
from dp_fedmed.data.records import Records
from dp_fedmed.learning.networks.dp_sgd import train_privately
from dp_fedmed.learning.networks.local_training import LocalTraining
from dp_fedmed.learning.networks.per_sample import PerSampleGradients
from dp_fedmed.learning.networks.record_check import settle_mode
from dp_fedmed.learning.networks.task import make_task, to_tensors
from dp_fedmed.models import build_model
from dp_fedmed.privacy.mechanisms.dp_sgd import DPSGD
from dp_fedmed.privacy.streams.noise import NoiseStream

CPU = torch.device("cpu")
QUICK = ("resnet18", "squeezenet1_1", "mobilenet_v3_small")
LARGE = (
    *("resnet50", "densenet121", "mobilenet_v2", "efficientnet_b0", "convnext_tiny", "vit_b_16"),
)


def records(channels: int, size: int) -> Records:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (2, channels, size, size), dtype=np.uint8)
    return Records(x, np.array([0, 3]))


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in LARGE)]
)
def test_one_private_step_moves_every_weight_that_is_trained(name: str) -> None:
    data = records(3, 32)
    config = ModelConfig(_target_=f"torchvision.models.{name}")
    model = build_model(config, input_shape=(3, 32, 32), num_classes=4, seed=0)
    task = make_task("classification", "cross_entropy")
    x, y = to_tensors(data, CPU)
    mode = settle_mode(model, task, x, y, wanted="auto", classes=4)
    before = {key: p.detach().clone() for key, p in model.named_parameters()}
    gradients = PerSampleGradients(model, task, mode)
    train_privately(
        gradients,
        data,
        config=LocalTraining(lr=0.1),
        plan=DPSGD(
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            sample_rate=1.0,
            steps=1,
            grad_mode=mode,
            physical_batch_size=2,
        ),
        batch_stream=lambda step: np.random.default_rng(step),
        noise_for=lambda step, exact: NoiseStream.from_public_seed(step),
        device=CPU,
    )
    gradients.close()
    after = dict(model.named_parameters())
    assert all(torch.isfinite(p).all() for p in after.values())
    assert all(not torch.equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_channels_are_fitted_and_grey_is_what_its_copies_would_be(channels: int) -> None:
    config = ModelConfig(_target_="torchvision.models.squeezenet1_1")
    colour = build_model(config, input_shape=(3, 32, 32), num_classes=4, seed=0).eval()
    fitted = build_model(config, input_shape=(channels, 32, 32), num_classes=4, seed=0).eval()
    grey = torch.randn(2, 1, 32, 32)
    with torch.no_grad():
        assert torch.allclose(
            colour(grey.expand(2, 3, 32, 32)), fitted(grey.expand(2, channels, 32, 32)), atol=1e-5
        )
