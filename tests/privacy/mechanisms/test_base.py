"""What all mechanisms share: sums in float64, one σ·Δ, keyed digests, and the same members."""

from __future__ import annotations

import numpy as np
import pytest

from dp_fedmed.privacy.accounting.events import PrivacyEvent
from dp_fedmed.privacy.mechanisms import MECHANISMS
from dp_fedmed.privacy.mechanisms.base import (
    Mechanism,
    Stateless,
    add,
    exact_inputs,
    gaussian_std,
    zeros_like,
)
from dp_fedmed.privacy.streams.noise import NoiseKey
from dp_fedmed.privacy.streams.rounds import RoundStreams

EVENT = PrivacyEvent.full(unit="client", noise_multiplier=2.0)
DP_SGD = {"max_grad_norm": 1.0, "sample_rate": 0.1, "steps": 3, "grad_mode": "hooks"}
MADE: dict[str, Mechanism] = {
    "fixed": MECHANISMS["fixed"](EVENT, max_norm=1.0, expected_cohort=60.0),
    "adaptive": MECHANISMS["adaptive"](
        EVENT, max_norm=1.0, expected_cohort=60.0, quantile=0.5, learning_rate=0.2
    ),
    "record_sums": MECHANISMS["record_sums"](EVENT, records={"a": 3}),
    "dp_sgd": MECHANISMS["dp_sgd"](noise_multiplier=2.0, physical_batch_size=8, **DP_SGD),
    "statistic_mean": MECHANISMS["statistic_mean"](noise_multiplier=2.0, records=9),
    "noisy_rows": MECHANISMS["noisy_rows"](noise_multiplier=2.0),
}


def test_every_mechanism_is_tried_here() -> None:
    assert MADE.keys() == MECHANISMS.keys()


@pytest.mark.parametrize("name", MADE)
def test_rounds_cost_what_their_releases_cost_together(name: str) -> None:
    mechanism = MADE[name]
    assert list(mechanism.cost(0)) == []
    (one,), (seven,) = mechanism.cost(1), mechanism.cost(7)
    assert seven == one.times(7)
    assert one.noise_multiplier == 2.0, "what is accounted is the σ that was asked for"
    of_records = name in ("dp_sgd", "statistic_mean", "noisy_rows")
    assert one.unit == ("record" if of_records else "client")


@pytest.mark.parametrize("name", MADE)
def test_an_order_is_plain_values_and_a_state_can_be_put_back(name: str) -> None:
    mechanism = MADE[name]
    order, state = mechanism.order(), mechanism.state()
    assert all(type(value) in (float, int, str) for value in order.values())
    assert "noise_multiplier" in order
    mechanism.restore(state)
    assert (mechanism.order(), mechanism.state()) == (order, state)
    assert mechanism.noised_by in ("client", "server")
    assert mechanism.hides_cohorts is (name in ("fixed", "adaptive"))


def test_noise_is_sigma_times_how_far_a_unit_moves_the_sum() -> None:
    assert gaussian_std(noise_multiplier=3.0, sensitivity=0.25) == 0.75
    assert gaussian_std(noise_multiplier=0.0, sensitivity=5.0) == 0.0


def test_sums_are_integers_and_nothing_else_is_added() -> None:
    total = zeros_like({"w": np.ones((2, 3), np.float32), "b": np.ones((), np.float16)})
    assert {value.dtype for value in total.values()} == {np.dtype(np.int64)}
    assert (total["w"].shape, total["b"].shape) == ((2, 3), ())
    held, update = total["w"], {"w": np.full((2, 3), 7), "b": np.array(-1)}
    for _ in range(3):
        add(total, update)
    assert total["w"] is held, "in place"
    assert (held.max(), int(total["b"]), update["w"].max()) == (21, -3, 7)
    with pytest.raises(TypeError):
        add(total, {"w": np.full((2, 3), 0.5)})


def test_exact_inputs_tell_sums_and_keys_apart_and_nothing_else() -> None:
    streams = RoundStreams(NoiseKey.from_public_seed(1), "run", 1, bytes(32))
    total = {"w": np.arange(3.0), "b": np.zeros(1)}
    digest = exact_inputs(total, streams)
    assert digest == exact_inputs({name: value.copy() for name, value in total.items()}, streams)
    for other in ({**total, "b": np.full(1, 5e-324)}, {"w": total["w"]}):
        assert exact_inputs(other, streams) != digest
    elsewhere = RoundStreams(NoiseKey.from_public_seed(2), "run", 1, bytes(32))
    assert exact_inputs(total, elsewhere) != digest


def test_what_has_no_state_takes_none_back() -> None:
    nothing = Stateless()
    nothing.restore({"clip_norm": 3.0})
    assert nothing.state() == {}
