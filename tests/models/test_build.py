"""Networks: shapes, reproducible weights, and layers that DP-SGD accepts."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from torch import nn

from dp_fedmed.config import ModelConfig
from dp_fedmed.data.records import Records
from dp_fedmed.errors import ConfigError
from dp_fedmed.learning.networks.dp_sgd import train_privately
from dp_fedmed.learning.networks.local_training import LocalTraining
from dp_fedmed.learning.networks.per_sample import PerSampleGradients
from dp_fedmed.learning.networks.record_check import settle_mode
from dp_fedmed.learning.networks.task import make_task, to_tensors
from dp_fedmed.models import build_model
from dp_fedmed.privacy.mechanisms.dp_sgd import DPSGD
from dp_fedmed.privacy.streams.noise import NoiseStream

HERE = __name__
CPU = torch.device("cpu")
QUICK = ("resnet18", "squeezenet1_1", "mobilenet_v3_small")
LARGE = (
    *("resnet50", "densenet121", "mobilenet_v2", "efficientnet_b0", "convnext_tiny", "vit_b_16"),
)


class WithBatchNorm(nn.Module):
    """A user's own network, with a layer that mixes records."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, num_classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.stem(x)))


def make_nothing() -> str:
    return "not a network"


def build(target: str, *, fix: bool = True, seed: int = 0, **args: object) -> nn.Module:
    config = ModelConfig(_target_=target, args=args, fix=fix)
    return build_model(config, input_shape=(1, 16, 16), num_classes=3, seed=seed)


def test_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    first = build("dp_fedmed.models.SmallCNN", seed=5)
    torch.manual_seed(2)
    second = build("dp_fedmed.models.SmallCNN", seed=5)
    other = build("dp_fedmed.models.SmallCNN", seed=6)
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not torch.equal(next(first.parameters()), next(other.parameters()))


def test_building_a_model_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    build("dp_fedmed.models.MLP")
    assert torch.equal(before, torch.random.get_rng_state())


def test_batch_norm_is_replaced_with_one_log_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="dp_fedmed"):
        model = build(f"{HERE}.WithBatchNorm")
    assert not any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    assert any(isinstance(module, nn.GroupNorm) for module in model.modules())
    assert len(caplog.records) == 1
    assert "norm" in caplog.text


def test_batch_norm_is_refused_by_name_when_not_to_be_fixed() -> None:
    with pytest.raises(ConfigError, match=r"model\.fix=false.*'norm' \(BatchNorm2d\)"):
        build(f"{HERE}.WithBatchNorm", fix=False)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("nowhere.MyNet", "cannot be imported"),
        ("dp_fedmed.models.Nothing", "cannot be imported"),
        (f"{HERE}.HERE", "not a class or function"),
        (f"{HERE}.make_nothing", "not a torch.nn.Module"),
    ],
)
def test_a_wrong_target_is_named(target: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        build(target)


def test_an_argument_that_the_network_does_not_take_is_named() -> None:
    with pytest.raises(ConfigError, match="depth"):
        build("dp_fedmed.models.MLP", depth=3)


def test_outputs_that_do_not_fit_the_classes_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"model\.args\.num_classes=3"):
        build("dp_fedmed.models.MLP", num_classes=7)


def test_an_image_too_small_for_the_network_is_explained() -> None:
    with pytest.raises(ConfigError, match="at most 4 entries"):
        build("dp_fedmed.models.SmallCNN", channels=[2] * 5)


@pytest.mark.parametrize("width", [2, 7, 8, 30, 32, 64])
def test_a_tables_batch_norm_is_replaced_by_groups_that_leave_something(width: int) -> None:
    config = ModelConfig(_target_=f"{__name__}.normalised", args={"width": width})
    model = build_model(config, input_shape=(30,), num_classes=2, seed=0)
    norm = model[1]
    assert isinstance(norm, nn.GroupNorm)
    assert norm.num_channels // norm.num_groups >= min(4, width)
    out = model.train()(torch.randn(5, 30))
    assert float(out.detach().std(dim=0).min()) > 0.0


def normalised(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(30, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 2)
    )


def test_whatever_a_network_raises_is_named() -> None:
    config = ModelConfig(_target_=f"{__name__}.Asserts")
    with pytest.raises(ConfigError, match=r"cannot take a record of shape \(30,\): AssertionError"):
        build_model(config, input_shape=(30,), num_classes=2, seed=0)


class Asserts(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x.shape[1] == 31
        return x


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
