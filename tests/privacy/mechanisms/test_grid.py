"""The integer grid: truncation never lengthens, noise is a rounded normal, limits are refused."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from dp_fedmed.privacy.mechanisms.grid import BITS, Grid
from dp_fedmed.privacy.streams.noise import NoiseStream


@pytest.mark.parametrize("norm", [1e-6, 0.3, 1.0, 1.5, 1e6])
def test_a_clipping_norm_has_two_to_the_thirty_steps_or_more(norm: float) -> None:
    grid = Grid.for_norm(norm, noise_multiplier=1.0)
    assert 2**BITS <= norm / grid.step < 2 ** (BITS + 1)
    assert math.frexp(grid.step)[0] == 0.5, "a power of two, so that scaling is exact"


def test_truncation_never_lengthens_a_vector_in_exact_arithmetic() -> None:
    rng = np.random.default_rng(0)
    grid = Grid.for_norm(0.7, noise_multiplier=1.0)
    for _ in range(50):
        vector = rng.normal(size=40)
        vector *= 0.7 / np.linalg.norm(vector)
        steps = grid.truncated(vector)
        length = sum(Fraction(int(s)) ** 2 for s in steps) * Fraction(grid.step) ** 2
        assert length <= sum(Fraction(float(v)) ** 2 for v in vector)
        assert np.abs(grid.values(steps) - vector).max() < grid.step


def test_sums_of_steps_do_not_depend_on_their_order() -> None:
    grid = Grid.for_norm(1.0, noise_multiplier=1.0)
    parts = [grid.truncated(row) for row in np.random.default_rng(1).normal(size=(30, 5))]
    assert (sum(parts) == sum(reversed(parts))).all()  # type: ignore[attr-defined]


def test_noise_is_a_rounded_normal_whatever_the_sum() -> None:
    grid = Grid.for_norm(1.0, noise_multiplier=1.0)
    noise = grid.noise(NoiseStream.from_public_seed(0), 200_000, std=2.0)
    assert noise.dtype == np.int64
    assert stats.kstest(grid.values(noise) / 2.0, "norm").pvalue > 1e-3
    low = np.bincount(noise & 0xFF, minlength=256)
    assert stats.chisquare(low).pvalue > 1e-4


def test_sensitivity_covers_truncation_and_float64_sums() -> None:
    """Two sums that differ in one clipped row, against exact fractions."""
    rng = np.random.default_rng(2)
    grid, d, n = Grid.for_norm(1.0, noise_multiplier=1.0), 60, 40
    allowed = grid.sensitivity(max_norm=1.0, dimension=d, contributions=n, rows_together=0)
    rows = rng.normal(size=(n, d))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    worst = 0.0
    for absent in range(n):
        others = np.delete(rows, absent, axis=0)
        moved = grid.truncated(rows.sum(axis=0)) - grid.truncated(others.sum(axis=0))
        worst = max(worst, math.sqrt(sum(int(m) ** 2 for m in moved)) * grid.step)
    assert worst <= allowed
    assert 1.0 < allowed < 1.0 + 1e-7


def test_what_does_not_fit_is_refused() -> None:
    grid = Grid.for_norm(1.0, noise_multiplier=1.0)
    grid.require_room(max_norm=1.0, noise_multiplier=1.0, contributions=10**9)
    with pytest.raises(ValueError, match="overflow"):
        grid.require_room(max_norm=1.0, noise_multiplier=1.0, contributions=2**33)
    with pytest.raises(ValueError, match="too little"):
        grid.require_room(max_norm=1.0, noise_multiplier=1e-6, contributions=10)
    with pytest.raises(OverflowError):
        grid.truncated(np.array([2.0**40]))
    with pytest.raises(OverflowError):
        grid.truncated(np.array([np.nan]))


@pytest.mark.parametrize("sigma", [0.01, 1.0, 16.0, 50.0, 1e3, 1e5])
def test_noise_spans_few_enough_steps_for_float64_to_fill_them(sigma: float) -> None:
    """A draw has 52 bits: with 2³⁴ steps per standard deviation, 2¹⁸ values fall on each step."""
    grid = Grid.for_norm(1.0, noise_multiplier=sigma)
    grid.require_room(max_norm=1.0, noise_multiplier=sigma, contributions=10**6)
    assert 1.0 / grid.step >= 2**20
    assert sigma / grid.step <= 2**34 or 1.0 / grid.step == 2**20
    assert sigma / grid.step <= 2**37
