"""Noise that clients draw themselves: all of it, or shares that add up to it."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from dp_fedmed.privacy import PrivacyEvent
from dp_fedmed.privacy.mechanisms import ClientUpdates, OwnAnswer, OwnNoise
from dp_fedmed.privacy.mechanisms.base import NoisedBy
from dp_fedmed.privacy.mechanisms.client_updates import BELOW
from dp_fedmed.privacy.mechanisms.own_noise import LEAST_SHARE_STEPS
from dp_fedmed.privacy.mechanisms.private_sum import Grid
from dp_fedmed.privacy.streams.noise import NoiseKey, NoiseStream
from dp_fedmed.privacy.streams.rounds import RoundStreams

GRID = Grid(2.0**-20)


def updates(noised_by: NoisedBy, sigma: float = 2.0) -> ClientUpdates:
    event = PrivacyEvent.full(unit="client", noise_multiplier=sigma)
    return ClientUpdates(event, max_norm=1.0, expected_cohort=4.0, noised_by=noised_by)


def streams(client: str = "ann", server_round: int = 1) -> RoundStreams:
    return RoundStreams(NoiseKey.from_public_seed(1), "run", server_round, bytes(32), client)


def test_the_shares_of_honest_clients_are_the_noise_of_the_sum() -> None:
    """Of 7 clients 2 drop out and 1 colludes: the other 4 have all of it, and are normal."""
    own = OwnNoise(grid=GRID, std=0.5, shares=4)
    zeros = {"w": np.zeros((100, 200), np.int64)}
    shares = [own.add(zeros, NoiseStream.from_public_seed(seed))["w"] for seed in range(4)]
    total = np.sum(shares, axis=0).ravel() * GRID.step
    assert total.std() == pytest.approx(0.5, rel=0.02)
    assert stats.kstest(total / 0.5, "norm").pvalue > 1e-3
    assert abs(np.corrcoef(shares[0].ravel(), shares[1].ravel())[0, 1]) < 0.03


@pytest.mark.parametrize(
    ("std", "shares"), [(0.9 * LEAST_SHARE_STEPS, 1), (LEAST_SHARE_STEPS, 2), (1.0, 0)]
)
def test_a_share_that_the_grid_would_show_through_is_refused(std: float, shares: int) -> None:
    with pytest.raises(ValueError, match="cannot be drawn by"):
        OwnNoise(grid=GRID, std=std * GRID.step, shares=shares)


def test_an_own_answer_is_clipped_then_noised_and_the_same_again() -> None:
    mechanism = updates("shares")
    own = OwnAnswer(noise=OwnNoise(grid=mechanism.sums.grid, std=2.0, shares=3), updates=mechanism)
    hostile = {"w": np.array([1e30, -1e30]), "b": np.array([np.float32(1e-3)])}
    exact, _ = mechanism.clipped(hostile)
    moved = sum(Fraction(int(v)) ** 2 for part in exact.values() for v in part.ravel())
    assert moved * Fraction(mechanism.sums.grid.step) ** 2 <= 1
    first, again = own.release(hostile, streams()), own.release(hostile, streams())
    assert all(np.array_equal(first[name], again[name]) for name in first)
    other = own.release(hostile, streams("bob"))
    assert not np.array_equal(first["w"] - exact["w"], other["w"] - exact["w"])
    assert first["w"].dtype == np.int64


def test_a_sum_over_records_is_noised_as_it_is() -> None:
    own = OwnAnswer(noise=OwnNoise(grid=GRID, std=1.0), updates=updates("shares"), is_sum=True)
    large = {"w": np.full(4, 2**50)}
    assert (own.release(large, streams())["w"] > 2**49).all(), "it is bounded before"


@pytest.mark.parametrize("noised_by", ["client", "shares"])
def test_the_server_adds_no_noise_to_what_clients_have_noised(noised_by: NoisedBy) -> None:
    mechanism = updates(noised_by)
    assert not mechanism.hides_cohorts
    total = {"w": np.array([8, -4]), BELOW: np.zeros(1, np.int64)}
    released = mechanism.release(total, streams())
    step = mechanism.sums.grid.step
    assert released["w"].tolist() == [np.float32(2 * step), np.float32(-step)]
    assert mechanism.order()["noised_by"] == noised_by
    assert "noised_by" not in updates("server").order(), "streams of runs before stay as they were"


def test_an_answer_that_no_noise_could_make_so_long_is_left_out() -> None:
    mechanism = updates("client", sigma=1.0)
    own = OwnAnswer(noise=OwnNoise(grid=mechanism.sums.grid, std=1.0), updates=mechanism)
    honest = own.release({"w": np.ones(1000)}, streams())
    assert np.array_equal(mechanism.bound(honest, client="ann")["w"], honest["w"])
    absurd = {"w": honest["w"] * 1000}
    assert not mechanism.bound(absurd, client="eve")["w"].any()
