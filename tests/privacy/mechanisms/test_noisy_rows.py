"""Single noised rows: a replaced record moves at most m of them, each by at most 2."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from dp_fedmed.privacy.mechanisms.noisy_rows import NoisyRows, select_rows
from dp_fedmed.privacy.streams.noise import NoiseKey, NoiseStream
from dp_fedmed.privacy.streams.rounds import RoundStreams

STREAMS = RoundStreams(NoiseKey.from_public_seed(1), "run", 1, bytes(32), client="a")
OWNERS = np.repeat(np.arange(6), 10)


def rows() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(len(OWNERS), 4)).astype(np.float32)


@pytest.mark.parametrize("m", [1, 4])
@pytest.mark.parametrize("value", [1e30, -1e30, np.nan, np.inf, 0.0])
def test_replacing_a_record_moves_the_matrix_by_at_most_two_root_m(m: int, value: float) -> None:
    """Noise off; the number of rows is public, so it stays."""
    mechanism = NoisyRows(noise_multiplier=4.0, rows_per_record=m)

    def released(values: np.ndarray) -> np.ndarray:
        kept = mechanism.select(OWNERS, NoiseStream.from_public_seed(3))
        return mechanism.bound(values[kept])

    changed = rows()
    changed[OWNERS == 2] = value
    before, after = released(rows()), released(changed)
    assert len(before) == len(after) == m * 6
    assert (before != after).any(axis=1).sum() <= m
    moved = sum(int(step) ** 2 for step in (before - after).ravel())
    assert moved * Fraction(mechanism.sums.grid.step) ** 2 <= 4 * m


def test_at_most_so_many_rows_of_each_owner_are_drawn() -> None:
    kept = select_rows([0, 0, 0, 1, 2, 2], 2, NoiseStream.from_public_seed(1))
    assert np.array_equal(kept, np.unique(kept)), "sorted, none twice"
    assert np.bincount(np.array([0, 0, 0, 1, 2, 2])[kept]).tolist() == [2, 1, 2]
    assert select_rows([], 2, NoiseStream.from_public_seed(1)).shape == (0,)
    drawn = {tuple(select_rows(OWNERS, 1, NoiseStream.from_public_seed(s))) for s in range(9)}
    assert len(drawn) > 5, "by the stream"


@pytest.mark.parametrize("m", [1, 9])
def test_noise_is_sigma_root_m_in_every_row(m: int) -> None:
    mechanism = NoisyRows(noise_multiplier=4.0, rows_per_record=m)
    assert mechanism.std == 4.0 * math.sqrt(m)
    noise = mechanism.release(np.zeros((500, 40), np.int64), STREAMS)
    assert noise.dtype == np.float32
    assert noise.std() == pytest.approx(4.0 * math.sqrt(m), rel=0.03)
    assert noise.std(axis=1).min() > 2.0 * math.sqrt(m), "no row is left out"
    assert mechanism.release(np.zeros((0, 40), np.int64), STREAMS).shape == (0, 40)


def test_a_replacement_counts_as_half_the_noise() -> None:
    (event,) = NoisyRows(noise_multiplier=4.0, rows_per_record=3).cost(5)
    assert (event.adjacency, event.unit, event.count) == ("replace_one", "record", 5)
    assert event.key == ("poisson", 2.0, 1.0)


def test_who_noises_and_how_much_is_the_order() -> None:
    mechanism = NoisyRows(noise_multiplier=4.0)
    assert mechanism.order()["noised_by"] == "client"
    assert NoisyRows(noise_multiplier=5.0).order() != mechanism.order()
    assert (mechanism.noised_by, mechanism.state()) == ("client", {})
