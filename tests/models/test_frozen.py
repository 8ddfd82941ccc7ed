"""Frozen features: the head is all that is trained; the rest is the same at every client."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from dp_fedmed.config import ModelConfig
from dp_fedmed.errors import ConfigError
from dp_fedmed.models import (
    FilterBankSegmenter,
    FourierLinear,
    ScatteringLinear,
    build_model,
    compact_linear,
    layer_problems,
)

Make = Callable[[tuple[int, ...], int], nn.Module]
CASES: list[tuple[Make, tuple[int, ...], tuple[int, ...]]] = [
    (ScatteringLinear, (1, 8, 8), (3,)),
    (ScatteringLinear, (3, 28, 31), (3,)),
    (FourierLinear, (30,), (3,)),
    (compact_linear, (30,), (3,)),
    (compact_linear, (1, 28, 28), (3,)),
    (FilterBankSegmenter, (1, 33, 40), (3, 33, 40)),
    (FilterBankSegmenter, (3, 16, 16), (3, 16, 16)),
]


def records(shape: tuple[int, ...], count: int = 4) -> torch.Tensor:
    return torch.rand(count, *shape, generator=torch.Generator().manual_seed(1)) * 2 - 1


def with_weights(make: Make, shape: tuple[int, ...]) -> nn.Module:
    """A model whose head is not zero, so that its outputs tell records apart."""
    model = make(shape, 3)
    generator = torch.Generator().manual_seed(2)
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    return model


@pytest.mark.parametrize(("make", "shape", "output"), CASES)
def test_shapes_fit_and_dp_sgd_accepts_the_layers(
    make: Make, shape: tuple[int, ...], output: tuple[int, ...]
) -> None:
    model = make(shape, 3)
    assert model(records(shape)).shape == (4, *output)
    assert layer_problems(model) == []


@pytest.mark.parametrize(("make", "shape", "output"), CASES)
def test_only_the_head_is_trained_and_sent(
    make: Make, shape: tuple[int, ...], output: tuple[int, ...]
) -> None:
    model = make(shape, 3)
    assert [name for name, _ in model.named_parameters()] == ["head.weight"]
    assert list(model.state_dict()) == ["head.weight"]
    assert not model.state_dict()["head.weight"].any()


@pytest.mark.parametrize(("make", "shape", "output"), CASES)
def test_features_are_the_same_at_every_client(
    make: Make, shape: tuple[int, ...], output: tuple[int, ...]
) -> None:
    torch.manual_seed(1)
    first = with_weights(make, shape)(records(shape))
    torch.manual_seed(2)
    assert torch.equal(first, with_weights(make, shape)(records(shape)))


@pytest.mark.parametrize(("make", "shape", "output"), CASES)
def test_records_do_not_influence_each_other(
    make: Make, shape: tuple[int, ...], output: tuple[int, ...]
) -> None:
    model, x = with_weights(make, shape), records(shape)
    alone = torch.cat([model(x[i : i + 1]) for i in range(len(x))])
    torch.testing.assert_close(model(x), alone, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("make", [ScatteringLinear, compact_linear])
def test_features_have_norm_one_whatever_the_brightness(make: Make) -> None:
    model = make((1, 28, 28), 3)
    bright = records((1, 28, 28))
    for x in (bright, 0.1 * bright):
        features = nn.Sequential(*list(model.children())[:-1])
        norms = features(x).norm(dim=1)
        torch.testing.assert_close(norms, torch.ones(4), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("make", "shape", "output"), CASES)
def test_a_blank_record_gives_finite_outputs(
    make: Make, shape: tuple[int, ...], output: tuple[int, ...]
) -> None:
    assert torch.isfinite(with_weights(make, shape)(torch.zeros(2, *shape))).all()


@pytest.mark.parametrize(
    ("name", "args", "said"),
    [
        ("ScatteringLinear", {"pool": 20}, r"model\.args\.pool=20"),
        ("FilterBankSegmenter", {"reduce": 8}, r"model\.args\.reduce=8"),
        ("FilterBankSegmenter", {"scales": [2.0, 1.0]}, r"model\.args\.scales"),
    ],
)
def test_arguments_that_cannot_work_are_named(
    name: str, args: dict[str, object], said: str
) -> None:
    config = ModelConfig(_target_=f"dp_fedmed.models.{name}", args=args)
    with pytest.raises(ConfigError, match=said):
        build_model(config, input_shape=(1, 16, 16), num_classes=2, seed=0)


def test_a_table_is_not_taken_for_an_image() -> None:
    with pytest.raises(ValueError, match="FourierLinear"):
        ScatteringLinear((30,), 2)


def test_a_filter_bank_computes_in_the_precision_of_its_input() -> None:
    """The comparison of records before round 1 is made in float64."""
    made = FilterBankSegmenter((1, 16, 16), 2).double()(torch.zeros(1, 1, 16, 16).double())
    assert made.dtype == torch.float64
