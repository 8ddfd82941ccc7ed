"""The private sum: bounded in exact arithmetic, free of order, noised by rounded normals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import stats

from dp_fedmed.privacy.mechanisms import private_sum
from dp_fedmed.privacy.mechanisms.private_sum import BITS, Grid, PrivateSum
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


def squared(steps: Sequence[np.ndarray], grid: Grid) -> Fraction:
    """The exact square of a norm."""
    return sum(int(v) ** 2 for part in steps for v in part.ravel()) * Fraction(grid.step) ** 2


HOSTILE = {
    "long": [np.full(1000, 3e5, np.float32), np.full((3, 4), -7e9)],
    "just above": [np.full(1000, 0.3 / math.sqrt(1000) * (1 + 2**-52))],
    "just at C": [np.full(1000, 0.3 / math.sqrt(1000))],
    "huge": [np.full(7, 1.7e308), np.full(2, -1.7e308)],
    "squares whose sum overflows": [np.full(3, 1.2e154), np.full(70_000, 1e152)],
    "tiny": [np.full(7, 5e-324), np.full(9, 1e-200)],
    "one huge value": [np.array([1e300, 1.0, -1e-300])],
    "half precision": [np.full(50, 6e4, np.float16)],
    "nothing": [np.zeros(0), np.zeros((2, 2))],
    "a scalar": [np.array(5.0)],
    "many": [np.random.default_rng(0).normal(size=100_000).astype(np.float32)],
}


@pytest.mark.parametrize("norm", [0.3, 1.0, 1e-6, 12345.678])
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_contribution_is_bounded_in_exact_arithmetic(kind: str, norm: float) -> None:
    sums = PrivateSum(max_norm=norm, noise_multiplier=1.0)
    given = HOSTILE[kind]
    steps, before = sums.bounded(given)
    assert squared(steps, sums.grid) <= Fraction(norm) ** 2
    assert [part.shape for part in steps] == [np.shape(part) for part in given]
    exact = sum(Fraction(float(v)) ** 2 for part in given for v in part.ravel())
    true = float(mpmath.sqrt(mpmath.mpf(exact.numerator) / exact.denominator))
    assert before == pytest.approx(true, rel=1e-9, abs=1e-150)
    if true > 1.01 * norm:
        assert math.sqrt(squared(steps, sums.grid)) == pytest.approx(norm, rel=1e-6), "no shorter"


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_contribution_that_is_not_finite_is_zero(bad: float) -> None:
    sums = PrivateSum(max_norm=1.0, noise_multiplier=1.0)
    steps, before = sums.bounded([np.ones(3), np.array([0.0, bad])])
    assert before == math.inf
    assert not any(part.any() for part in steps)


def test_short_contributions_stay_as_they_are() -> None:
    sums = PrivateSum(max_norm=1.0, noise_multiplier=1.0)
    vector = np.array([0.25, -0.5, 3 * sums.grid.step])
    steps, _ = sums.bounded([vector])
    assert np.array_equal(sums.grid.values(steps[0]), vector)


def test_rows_are_bounded_each_by_itself() -> None:
    sums = PrivateSum(max_norm=0.7, noise_multiplier=1.0)
    rows = np.vstack([np.full(30, 9.0), np.full(30, np.nan), np.full(30, 1e-3), np.full(30, 1e308)])
    steps = sums.bounded_rows(rows)
    assert all(squared([row], sums.grid) <= Fraction(0.7) ** 2 for row in steps)
    assert not steps[1].any()
    assert sums.grid.values(steps[2]) == pytest.approx(rows[2], abs=sums.grid.step)
    assert np.array_equal(steps[0], sums.bounded_rows(rows[:1])[0]), "alone as among others"


def test_what_others_send_is_checked_against_the_bound() -> None:
    sums = PrivateSum(max_norm=1.0, noise_multiplier=1.0)
    steps, _ = sums.bounded([np.full(4000, 5.0)])
    assert sums.fits(steps)
    assert not sums.fits([2 * steps[0]])
    assert sums.fits([2 * steps[0]], 2.0)
    longest = np.array([int(1.0 / sums.grid.step)])
    assert not sums.fits([longest + 1])
    for margin in range(3):
        if sums.fits([longest - margin]):
            assert squared([longest - margin], sums.grid) <= 1
    assert not sums.fits([np.full(3, np.iinfo(np.int64).min)])


def test_the_same_bytes_in_any_order_and_any_grouping() -> None:
    sums = PrivateSum(max_norm=1.0, noise_multiplier=1.0)
    rng = np.random.default_rng(3)
    parts = [sums.bounded([rng.normal(size=50).astype(np.float32)])[0][0] for _ in range(20)]
    whole = sum(parts)
    for _ in range(5):
        order = rng.permutation(20)
        first, second = (sum(parts[i] for i in half) for half in np.split(order, [7]))
        assert np.array_equal(first + second, whole)


def test_an_empty_sum_is_noised_too_and_the_denominator_is_public() -> None:
    sums = PrivateSum(max_norm=2.0, noise_multiplier=3.0)
    nothing = [np.zeros(30_000, np.int64), np.zeros((2, 3), np.int64)]
    released = sums.release(nothing, NoiseStream.from_public_seed(1), denominator=4.0)
    assert [part.shape for part in released] == [(30_000,), (2, 3)]
    assert released[0].std() == pytest.approx(sums.std / 4.0, rel=0.02)
    assert sums.std == 6.0
    silent = sums.release(nothing, NoiseStream.from_public_seed(1), std=0.0)
    assert not silent[0].any()


def test_low_bits_of_a_release_tell_nothing_of_the_sum() -> None:
    """What float32 noise on a float32 sum gives away (Mironov 2012): which values can occur."""
    sums = PrivateSum(max_norm=1.0, noise_multiplier=1.0)
    for value in (0, 1, 2**29 + 12345):
        total = [np.full(100_000, value)]
        released = sums.release(total, NoiseStream.from_public_seed(value))[0] / sums.grid.step
        assert np.array_equal(released, np.rint(released)), "on the grid, like every other sum's"
        low = np.bincount(released.astype(np.int64) & 0xFF, minlength=256)
        assert stats.chisquare(low).pvalue > 1e-4


def test_too_many_contributions_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match="overflow"):
        PrivateSum(max_norm=1.0, noise_multiplier=1.0, contributions=2**33)


ROUNDOFF = Fraction(1, 2**53)


@pytest.mark.parametrize("dimension", [1, 2, 1000, 10**6, 10**9])
@pytest.mark.parametrize("norm", [1.0, 1.0 - 2.0**-53, 1.0 + 2.0**-52, 0.7, 1e-6, 12345.678])
def test_the_margin_below_a_bound_covers_any_order_of_summation(
    norm: float, dimension: int
) -> None:
    """γ_n = nu/(1-nu) (Higham 2002, section 3.1) on a norm, with room for scaling it to C."""
    n = dimension + 8
    gamma = n * ROUNDOFF / (1 - n * ROUNDOFF)
    below = Fraction(private_sum._below(norm, dimension))
    assert below * (1 + gamma) <= Fraction(norm)
    assert below >= Fraction(norm) * (1 - 3 * n * ROUNDOFF), "and no more than that is lost"


@pytest.mark.parametrize("norm", [1.0, 2.0**-7, 64.0])
@pytest.mark.parametrize("longer", [0.0, 2.0**-52, 2.0**-45])
def test_a_contribution_is_bounded_where_a_norm_is_added_up_in_the_worst_order(
    norm: float, longer: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One value of C, and 200,000 whose squares vanish beside its own, all whole steps."""

    def one_by_one(flat: Sequence[np.ndarray]) -> tuple[float, float]:
        squares = np.concatenate([part.astype(np.float64) for part in flat]) ** 2
        return math.sqrt(np.cumsum(squares)[-1]), 1.0

    monkeypatch.setattr(private_sum, "_norm", one_by_one)
    sums = PrivateSum(max_norm=norm, noise_multiplier=1.0)
    vector = np.full(200_001, norm * 2.0**-27)
    vector[0] = norm * (1.0 + longer)
    assert one_by_one([vector])[0] == vector[0], "the others are lost"
    assert squared(sums.bounded([vector])[0], sums.grid) <= Fraction(norm) ** 2


@pytest.mark.parametrize("norm", [1e-150, 1e-160, 1e-200, 1e-290])
def test_a_c_whose_square_vanishes_bounds_too(norm: float) -> None:
    """Adaptive clipping can come to any C; squares below 1e-308 are not zero for that."""
    sums = PrivateSum(max_norm=norm, noise_multiplier=1.0)
    steps, before = sums.bounded([np.full(10_000, norm)])
    assert before == pytest.approx(100.0 * norm, rel=1e-9)
    assert squared(steps, sums.grid) <= Fraction(norm) ** 2
    rows = sums.bounded_rows(np.full((2, 10_000), norm))
    assert squared([rows[0]], sums.grid) <= Fraction(norm) ** 2
    short, _ = sums.bounded([np.full(100, norm / 64)])
    assert np.array_equal(
        sums.grid.values(short[0]), np.full(100, norm / 64) // sums.grid.step * sums.grid.step
    )


def float_below(square: Fraction) -> float:
    """The largest float64 whose square is less."""
    exact = mpmath.sqrt(mpmath.mpf(square.numerator) / square.denominator)
    found = float(exact) * (1 + 2.0**-50)
    while Fraction(found) ** 2 >= square:
        found = math.nextafter(found, 0.0)
    return found


def test_integers_that_are_longer_than_a_bound_by_any_little_do_not_fit() -> None:
    """The bound is the largest float64 below their exact norm."""
    sums = PrivateSum(max_norm=1.0, noise_multiplier=1.0)
    rng = np.random.default_rng(0)
    found = [
        np.array([10882978472561313, 4517795093853910]),
        np.array([12112084601099421, 5777503374276204]),
        np.array([95266922653428116, 179311455867325199]),
    ]
    for dimension in (1, 2, 3, 4, 9, 50):
        for top in (2**20, 2**30, 2**31, 2**54, 2**60):
            found += list(rng.integers(1, top, size=(20, dimension)))
    for steps in found:
        bound = float_below(squared([steps], sums.grid))
        assert not sums.fits([steps], bound), steps.tolist()
        assert sums.fits([steps], bound * (1 + (steps.size + 8) * 2.0**-52))


def test_a_full_step_in_every_value_is_what_truncation_adds() -> None:
    """The worst case: each value of the sum lies just below a step, and the record lifts it."""
    grid, d = Grid.for_norm(1.0, noise_multiplier=1.0), 10_000
    allowed = grid.sensitivity(max_norm=1.0, dimension=d, contributions=2, rows_together=0)
    record = np.full(d, 1.0 / math.sqrt(d))
    steps, rest = divmod(Fraction(float(record[0])), Fraction(grid.step))
    assert rest > 0
    others = np.full(d, grid.step * (1.0 - 2.0**-20))
    moved = grid.truncated(others + record) - grid.truncated(others)
    assert set(moved.tolist()) == {int(steps) + 1}
    assert 1 < squared([moved], grid) <= Fraction(allowed) ** 2


@pytest.mark.parametrize("dimension", [1, 60, 10**7])
@pytest.mark.parametrize("contributions", [1, 1000, 10**6])
@pytest.mark.parametrize("norm", [1e-6, 0.7, 1.0])
def test_sensitivity_is_no_less_than_its_terms_in_exact_arithmetic(
    norm: float, contributions: int, dimension: int
) -> None:
    grid = Grid.for_norm(norm, noise_multiplier=1.0)
    allowed = grid.sensitivity(
        max_norm=norm, dimension=dimension, contributions=contributions, rows_together=7
    )
    n, u = contributions, mpmath.mpf(2) ** -53
    with mpmath.workdps(50):
        sums = 2 * (n - 1) * u / (1 - (n - 1) * u) * n  # γ of n - 1 additions, for both sums
        rounding = (dimension + 2) * u + sums + 7 * mpmath.mpf(2) ** -18
        least = norm * (1 + rounding) + mpmath.sqrt(dimension) * grid.step
        assert least <= allowed <= least * (1 + (2 * dimension + 6 * n + 20) * u)


def test_projecting_a_sum_moves_it_by_no_more_than_is_charged_for_rounding() -> None:
    """Bounds of 2⁵² steps and more, where floats are coarser than the grid."""
    rng = np.random.default_rng(4)
    sums = PrivateSum(max_norm=2.0**-22, noise_multiplier=1.0, contributions=10)
    grid, beyond = sums.grid, []
    for _ in range(400):
        d, bound = int(rng.integers(2, 9)), 2.0 ** int(rng.integers(0, 7))
        exact = rng.normal(size=d)
        exact *= bound * (1 + rng.normal() * 2.0**-18) / np.linalg.norm(exact)
        record = rng.normal(size=d)
        (own,), _ = sums.bounded([record / np.linalg.norm(record)])
        total = np.rint(exact / grid.step).astype(np.int64)
        (a,), (b,) = (sums.bounded([grid.values(t)], bound)[0] for t in (total, total + own))
        moved, alone = (
            mpmath.sqrt(sum(int(v) ** 2 for v in part)) * grid.step for part in (a - b, own)
        )
        left = moved - alone - mpmath.sqrt(d) * grid.step
        assert left <= sums.projection_rounding(bound, d)
        assert moved <= sums.projected_sensitivity(bound, d)
        beyond.append(left)
    assert max(beyond) > 0, "rounding does add something"
