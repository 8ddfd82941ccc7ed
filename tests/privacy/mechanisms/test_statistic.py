"""A mean of bounded vectors: one record moves it by at most 1/n, and its noise is σ/n."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from dp_fedmed.privacy.accounting.events import PrivacyEvent
from dp_fedmed.privacy.mechanisms.statistic import BOUND, StatisticMean, bounded, record_costs
from dp_fedmed.privacy.streams.noise import NoiseKey
from dp_fedmed.privacy.streams.rounds import RoundStreams

N = 8
MECHANISM = StatisticMean(noise_multiplier=3.0, records=N)
STREAMS = RoundStreams(NoiseKey.from_public_seed(1), "run", 1, bytes(32), client="a")
HOSTILE = [
    np.full(5, 1e300),
    np.full(5, -1e30),
    np.full(5, np.nan),
    np.array([np.inf, 0, 0, 0, 0]),
    np.zeros(5),
    np.full(5, 1e-300),
]


def vectors() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(N, 5))


@pytest.mark.parametrize("other", HOSTILE)
def test_one_record_moves_the_sum_by_at_most_one(other: np.ndarray) -> None:
    """Noise off: neighbours differ by a record whose vector is zero."""
    changed, without = vectors(), vectors()
    changed[3], without[3] = other, 0.0
    moved = MECHANISM.bound(changed).sum(0) - MECHANISM.bound(without).sum(0)
    squares = sum(int(step) ** 2 for step in moved)
    assert squares * Fraction(MECHANISM.sums.grid.step) ** 2 <= 1, "in exact arithmetic"


def test_each_vector_is_bounded_by_itself_and_short_ones_stay() -> None:
    rows = np.vstack([vectors() * 10.0, [[0.1, 0.2, 0.0, 0.0, 0.0]], HOSTILE])
    kept = bounded(rows)
    assert kept.dtype == np.float64
    assert np.linalg.norm(kept, axis=1).max() <= BOUND
    assert kept[N] == pytest.approx(rows[N])
    assert not kept[np.isnan(rows).any(axis=1) | np.isinf(rows).any(axis=1)].any()
    assert np.array_equal(kept[2], bounded(rows[2:3])[0])


def test_the_clients_noise_is_sigma_over_n() -> None:
    assert MECHANISM.std == 3.0 * BOUND / N
    noise = MECHANISM.release(np.zeros(40_000, np.int64), STREAMS)
    assert noise.std() == pytest.approx(3.0 / N, rel=0.02)
    assert abs(noise.mean()) < 0.01
    assert np.array_equal(noise, MECHANISM.release(np.zeros(40_000, np.int64), STREAMS))
    assert StatisticMean(noise_multiplier=3.0, records=0).std == 3.0, "a client without records"


def test_another_mean_has_other_noise() -> None:
    one, other = np.zeros(2000, np.int64), np.ones(2000, np.int64)
    drawn = [MECHANISM.release(total, STREAMS) for total in (one, other)]
    assert abs(np.corrcoef(drawn)[0, 1]) < 0.15


def test_a_trusted_server_gets_the_exact_sum_and_is_told_apart() -> None:
    trusted = replace(MECHANISM, noised_by="server")
    total = trusted.bound(vectors()).sum(0)
    assert np.array_equal(trusted.release(total, STREAMS), total)
    assert (trusted.order()["noised_by"], MECHANISM.order()["noised_by"]) == ("server", "client")
    assert list(trusted.cost(2)) == list(MECHANISM.cost(2)), "whoever adds the noise"


@pytest.mark.parametrize("change", [{"noise_multiplier": 4.0}, {"noised_by": "server"}])
def test_other_noise_is_another_order(change: dict[str, object]) -> None:
    assert replace(MECHANISM, **change).order() != MECHANISM.order()  # type: ignore[arg-type]


def test_every_record_is_in_every_release() -> None:
    event = PrivacyEvent.full(unit="record", noise_multiplier=3.0, count=4, adjacency="zero_out")
    assert list(MECHANISM.cost(4)) == list(record_costs(MECHANISM, 4)) == [event]
    assert list(record_costs(MECHANISM, 0)) == []
    assert (MECHANISM.sample_rate, MECHANISM.steps) == (1.0, 1)
    assert MECHANISM.state() == {}
