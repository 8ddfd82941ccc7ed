"""The noise that is released: a rounded normal, from every mechanism's stream, and as shares.

A sum of K rounded normals is *not* one rounded normal: each rounding adds a twelfth of a step² to
the variance. It is the rounding of N(0, Ks²) and K-1 uniforms, up to exp(-2π²s²(1-1/K)): that is
post-processing of the Gaussian mechanism too, so what shares hide costs what is accounted.
"""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from mpmath import mpf
from scipy import stats

from dp_fedmed.privacy.mechanisms.private_sum import Grid
from dp_fedmed.privacy.streams.noise import NoiseStream
from tests.privacy.mechanisms.test_low_bits import TARGETS, in_steps, target_of

LEAST_SHARE = 2**10  # steps that a share's standard deviation has at least
CHANCE = 1e-4


@cache
def rounded_normal(std: float) -> dict[int, mpf]:
    """P(rint(N(0, std²)) = n), as far out as it matters."""
    reach = math.ceil(14 * std) + 1
    below = [mpmath.ncdf((mpf(n) - mpf(1) / 2) / std) for n in range(-reach, 1)]
    left = [b - a for a, b in pairwise(below)]
    whole = [*left, 1 - 2 * mpmath.fsum(left), *reversed(left)]
    return dict(zip(range(-reach, reach + 1), whole, strict=True))


def chi_square(draws: np.ndarray, law: dict[int, mpf]) -> float:
    """The p-value of integers against their law; rare ones count together."""
    common = [n for n, p in law.items() if p * draws.size > 20]
    values, counts = np.unique(draws, return_counts=True)
    seen = dict(zip(values.tolist(), counts.tolist(), strict=True))
    found = [seen.get(n, 0) for n in common]
    expected = [float(law[n]) * draws.size for n in common]
    rest = draws.size - sum(expected)
    if rest > 5:
        found, expected = [*found, draws.size - sum(found)], [*expected, rest]
    return float(stats.chisquare(found, np.array(expected) * sum(found) / sum(expected)).pvalue)


@pytest.mark.parametrize("std", [0.3, 1.0, 4.5])
def test_noise_is_the_rounded_normal_step_by_step(std: float) -> None:
    """Where steps are so coarse that each can be counted."""
    draws = Grid(1.0).noise(NoiseStream.from_public_seed(1), 200_000, std=std)
    law = rounded_normal(std)
    assert chi_square(draws, law) > CHANCE
    variance = float(mpmath.fsum(n * n * p for n, p in law.items()))
    fourth = float(mpmath.fsum(n**4 * p for n, p in law.items()))
    assert abs(draws.mean()) < 4 * math.sqrt(variance / draws.size)
    spread = math.sqrt((fourth - variance**2) / draws.size)
    assert abs((draws.astype(float) ** 2).mean() - variance) < 4 * spread


@pytest.mark.parametrize("name", TARGETS)
def test_every_mechanisms_noise_is_a_normal_of_the_scale_that_is_accounted(name: str) -> None:
    """What was published minus the exact sum: mean, variance, shape, and no noise used twice."""
    target = target_of(name)
    noise = [
        (in_steps(values, target) - total) * (target.step / target.std)
        for values, total in zip(target.published, target.sums, strict=True)
    ]
    for own in noise:
        n = own.size
        assert abs(own.mean()) < 4 / math.sqrt(n)
        assert CHANCE / 2 < stats.chi2.cdf(float((own**2).sum()), n) < 1 - CHANCE / 2
        assert stats.kstest(own, "norm").pvalue > CHANCE
        cut = np.bincount((stats.norm.cdf(own) * 64).astype(int), minlength=64)
        assert stats.chisquare(cut).pvalue > CHANCE
    assert abs(np.corrcoef(noise)[0, 1]) < 4 / math.sqrt(noise[0].size), "another sum, other noise"


def sinc(x: mpf) -> mpf:
    return mpf(1) if x == 0 else mpmath.sin(x) / x


def characteristic(t: mpf, *, variance: mpf, uniforms: int) -> mpf:
    """E exp(itX) of X = rint(N(0, variance) + uniforms): a theta series (Poisson summation)."""
    turns = [t + 2 * mpmath.pi * m for m in range(-6, 7)]
    return mpmath.fsum(
        mpmath.exp(-variance * u * u / 2) * sinc(u / 2) ** (uniforms + 1) for u in turns
    )


@pytest.mark.parametrize("std", [0.5, 1.25])
def test_the_theta_series_is_that_of_the_rounded_normal(std: float) -> None:
    for t in (0, 0.3, 1.7, 3.1):
        direct = mpmath.fsum(p * mpmath.cos(n * t) for n, p in rounded_normal(std).items())
        assert abs(direct - characteristic(mpf(t), variance=mpf(std) ** 2, uniforms=0)) < 1e-13


def shares_bound(std: float, shares: int) -> mpf:
    """How far the characteristic function of K shares may be from that of what they stand for."""
    return shares * mpmath.exp(-2 * mpmath.pi**2 * mpf(std) ** 2 * (1 - mpf(1) / shares))


@pytest.mark.parametrize(("std", "shares"), [(1.0, 2), (1.5, 2), (1.0, 3), (1.0, 10), (1.25, 40)])
def test_a_sum_of_shares_is_a_rounding_of_the_gaussian_and_uniforms(
    std: float, shares: int
) -> None:
    with mpmath.workdps(60):
        s2 = mpf(std) ** 2
        times = [mpmath.pi * i / 60 for i in range(61)] + [2 * mpmath.pi / shares]
        gaps = [
            abs(
                characteristic(t, variance=s2, uniforms=0) ** shares
                - characteristic(t, variance=shares * s2, uniforms=shares - 1)
            )
            for t in times
        ]
        bound = shares_bound(std, shares)
        assert bound / 1000 < max(gaps) <= bound
        assert shares_bound(LEAST_SHARE, shares) < mpf(10) ** -1_000_000


def test_two_shares_are_that_rounding_value_by_value() -> None:
    """Without any series: P(rint(N(0, 2s²) + U) = n) is a second difference of ∫∫ of the bell."""
    with mpmath.workdps(40):
        std = 1.0
        one, scale = rounded_normal(std), mpmath.sqrt(2) * std

        def twice(x: int) -> mpf:
            return x * mpmath.ncdf(x / scale) + scale * mpmath.npdf(x / scale)

        apart = []
        for n in range(7):
            both = mpmath.fsum(p * one.get(n - m, mpf(0)) for m, p in one.items())
            ideal = twice(n + 1) - 2 * twice(n) + twice(n - 1)
            assert abs(both - ideal) < shares_bound(std, 2)
            single = mpmath.ncdf((n + mpf(1) / 2) / scale) - mpmath.ncdf((n - mpf(1) / 2) / scale)
            apart.append(abs(both - single))
        assert max(apart) > 50 * shares_bound(std, 2), "no rounded normal"


@pytest.mark.parametrize("shares", [2, 10, 1000])
def test_a_sum_of_shares_is_near_one_rounded_normal_by_a_twelfth_of_a_step_squared(
    shares: int,
) -> None:
    """At 2¹⁰ steps, 3·10⁻⁸: harmless, and not exp(-2π²s²)."""
    with mpmath.workdps(40):
        s2 = mpf(LEAST_SHARE) ** 2
        gaps = []
        for i in range(1, 41):
            t = mpf(i) / 8 / mpmath.sqrt(shares * s2)
            both = characteristic(t, variance=s2, uniforms=0) ** shares
            gaps.append(abs(both - characteristic(t, variance=shares * s2, uniforms=0)))
        bound = (1 - mpf(1) / shares) / (12 * mpmath.e * s2)
        assert 0.95 * bound < max(gaps) <= bound
        assert bound < 3e-8


@pytest.mark.parametrize(("std", "shares"), [(1.0, 3), (LEAST_SHARE, 10)])
def test_shares_that_are_drawn_add_up_to_that(std: float, shares: int) -> None:
    drawn = [
        Grid(1.0).noise(NoiseStream.from_public_seed(50 + k), 100_000, std=std)
        for k in range(shares)
    ]
    total = np.sum(drawn, axis=0)
    variance = shares * (std**2 + 1 / 12)
    square = float((total.astype(float) ** 2).mean())
    assert square == pytest.approx(variance, rel=4 * math.sqrt(2 / total.size))
    if std >= LEAST_SHARE:
        assert stats.kstest(total / math.sqrt(variance), "norm").pvalue > CHANCE
        return
    one = np.array([float(p) for p in rounded_normal(std).values()])
    law = one
    for _ in range(shares - 1):
        law = np.convolve(law, one)
    assert chi_square(total, {n - len(law) // 2: mpf(p) for n, p in enumerate(law)}) > CHANCE
    assert chi_square(total, rounded_normal(std * math.sqrt(shares))) < 1e-9, "not one of them"
