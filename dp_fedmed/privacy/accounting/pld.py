"""Tight ε from privacy loss distributions, on a grid chosen for the history at hand.

dp_accounting composes the distributions; this file is responsible for the grid (ε within 1e-3
relative), for what is cut off (added to δ), and for not trusting an FFT beyond its precision.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, log_ndtr, logsumexp, ndtr

from dp_fedmed.privacy.accounting.gaussian import gaussian_epsilon

Array = NDArray[np.float64]

#: (σ, q, T): T Poisson-sampled Gaussian steps, add/remove adjacency.
Segment = tuple[float, float, int]

#: Error of the grid that is aimed at, and the one that is accepted; the promise is 1e-3, the rest
#: is margin for the estimate of the error.
_AIM: Final = 2.5e-4
_ACCEPTED: Final = 7e-4
#: Part of δ that truncation may use up, over all segments.
_TRUNCATED: Final = 2e-4
#: Absolute error in δ of FFT powers is below 0.4·T·2⁻⁵² in experiments against the closed form
#: (it comes out with either sign, so that a bare PLD may under-report); five times that is kept.
_FFT_ERROR: Final = 2.0 * 2.0**-52
#: Rounding of a mixture's divergence stays below 1e-14 a step against numeric integration.
_MIXTURE_ERROR: Final = 1e-13
#: Powers above this are taken in two stages: dp_accounting decides between its sparse and dense
#: forms by computing size**count as an exact integer, which takes seconds at a million steps.
_STAGE: Final = 1024
_MAX_BINS: Final = 1_500_000
#: Below it, single losses reach hundreds, exp() overflows inside dp_accounting, and ε is absurd.
_SMALLEST_SIGMA: Final = 0.1
_LARGEST_LOSS: Final = 600.0
#: Most of Newton's steps when a privacy loss is inverted.
_NEWTON: Final = 200

_logger = logging.getLogger(__name__)


def pld_epsilon(segments: Sequence[Segment], *, delta: float, group: int = 1) -> float:
    """ε of a history of Poisson-sampled Gaussian steps, by privacy loss distributions.

    Discretised by "connect the dots" (Doroshenko et al. 2022), which is pessimistic: the result
    is an upper bound at every grid. Segments with q = 1 are composed in closed form.

    Args:
        segments: (σ, q, T) rows.
        delta: δ in (0, 1).
        group: Units that come or go together, each drawn by its own coin.

    Returns:
        ε at ``delta``, an upper bound always, and within 1e-3 relative where ε ≥ 0.01 and
        δ ≥ 1e-12·T; ``inf`` when δ is too small for double-precision FFTs over this many
        steps or σ is below 0.1 (use RDP then). The cost is about 30 ms per distinct (σ, q).

    Example:
        >>> round(pld_epsilon([(1.0, 0.01, 1000)], delta=1e-5), 2)
        1.83
    """
    return _pld_epsilon(tuple(sorted(segments)), delta, group)


@functools.lru_cache(maxsize=1024)
def _pld_epsilon(segments: tuple[Segment, ...], delta: float, group: int) -> float:
    # Cached because the clients of a federation often share one history.
    precision = math.fsum(count / (sigma / group) ** 2 for sigma, q, count in segments if q == 1.0)
    sampled = [segment for segment in segments if segment[1] < 1.0]
    if not sampled:
        if precision == 0.0:
            return 0.0
        return gaussian_epsilon(noise_multiplier=precision**-0.5, delta=delta)
    rows = sorted(sampled + ([(precision**-0.5, 1.0, 1)] if precision > 0.0 else []))
    steps = sum(count for _, _, count in rows)
    usable_delta = delta - _FFT_ERROR * (steps + 50 * len(rows))
    if group > 1:
        usable_delta -= _MIXTURE_ERROR * steps
    if usable_delta < 0.5 * delta or rows[0][0] < _SMALLEST_SIGMA:
        return math.inf
    # A unit that is never drawn loses nothing: the outputs differ at most by that chance.
    never = math.fsum(count * group * math.log1p(-q) for _, q, count in sampled)
    if precision == 0.0 and -math.expm1(never) <= usable_delta:
        return 0.0
    unit, smallest, reach = _grid_unit(rows, steps, group)
    if group > 1 and reach > _LARGEST_LOSS:
        return math.inf
    try:
        return _refined(rows, usable_delta, unit=unit, smallest=smallest, group=group)
    except (ArithmeticError, ValueError) as error:
        _logger.info("no PLD for %s at delta=%g (%s): RDP stands alone", segments, delta, error)
        return math.inf


def _refined(
    rows: list[Segment], delta: float, *, unit: float, smallest: float, group: int = 1
) -> float:
    """Shrink the grid until the estimated discretisation error is acceptable.

    The error of connect-the-dots falls with the square of the grid's width, but only linearly
    where rare large losses dominate; the values at the last widths tell which (Richardson).
    """
    width, shrink = max(0.8 * unit, smallest), 0.5
    points = [(width, _compose(rows, delta, width=width, group=group))]
    for _ in range(6):
        if width <= smallest:
            break
        width = max(width * shrink, smallest)
        points.append((width, _compose(rows, delta, width=width, group=group)))
        scale = max(points[-1][1], 0.01)
        order, error = _order_and_error(points)
        # Two points show no order yet: accept on the slower one, plan on the usual one.
        if _error(points, 1 if len(points) == 2 else order) <= _ACCEPTED * scale:
            break
        # Far jumps only on the usual order: at the slower one they would cost tenfold for little.
        least = 0.1 if order == 2 else 0.4
        shrink = min(max((_AIM * scale / error) ** (1.0 / order), least), 0.5)
    return points[-1][1]


def _order_and_error(points: list[tuple[float, float]]) -> tuple[int, float]:
    if len(points) == 2 or not math.isfinite(points[-3][1]):
        return 2, _error(points, 2)
    (w0, e0), (w1, e1), (w2, e2) = points[-3:]
    quadratic = (e0 - e1) * (w1**2 - w2**2) / (w0**2 - w1**2)
    order = 2 if e1 - e2 <= 1.1 * quadratic else 1
    return order, _error(points, order)


def _error(points: list[tuple[float, float]], order: int) -> float:
    """Estimated error of the last point, if it falls with this power of the width."""
    (w1, e1), (w2, e2) = points[-2:]
    return (e1 - e2) / ((w1 / w2) ** order - 1.0) if math.isfinite(e2) else math.inf


def _grid_unit(rows: list[Segment], steps: int, group: int) -> tuple[float, float, float]:
    """A step's standard deviation of the loss, the narrowest grid, and the largest loss."""
    mean = variance = reach = 0.0
    for sigma, q, count in rows:
        units = group if q < 1.0 else 1  # a full step stands for the whole group already
        m, v = _loss_moments(sigma, q, units)
        mean, variance = mean + count * m, variance + count * v
        exponent = units * (units + 16.0 * sigma) / (2.0 * sigma**2)
        reach = max(reach, float(np.logaddexp(0.0, units * math.log(q) + exponent)))
    span = reach + mean + 16.0 * math.sqrt(variance)
    return math.sqrt(variance / steps), span / _MAX_BINS, reach


def _loss_moments(sigma: float, q: float, units: int) -> tuple[float, float]:
    """Mean and variance of one step's privacy loss, when the units are present."""
    t = np.linspace(-9.0, 9.0 + units / sigma, 2000)
    v = (2.0 * sigma * t - 1.0) / (2.0 * sigma**2)
    loss = np.logaddexp(math.log1p(-q), math.log(q) + v) if q < 1.0 else v
    if units > 1:
        loss = log_ratio(sigma * t, sigma, q, units)
    weight = np.exp(loss - 0.5 * t * t)
    weight /= weight.sum()
    mean = float(weight @ loss)
    # For tiny q the mean drowns in rounding; the second moment bounds the variance and is stable.
    return max(mean, 0.0), max(float(weight @ (loss - mean) ** 2), 1e-300)


def _compose(rows: list[Segment], delta: float, *, width: float, group: int = 1) -> float:
    steps = sum(count for _, _, count in rows)
    cut = max(math.log(_TRUNCATED * delta / (2.0 * steps)), -600.0)
    tail = _TRUNCATED * delta / (4.0 * len(rows))
    total: Any = None
    for sigma, q, count in rows:
        step = _one_step(sigma, q, width=width, cut=cut, group=group)
        part = _power(step, count, tail)
        total = part if total is None else total.compose(part, tail)
    return max(0.0, float(total.get_epsilon_for_delta(delta)))


def _one_step(sigma: float, q: float, *, width: float, cut: float, group: int = 1) -> Any:
    """One step's distribution, as dp_accounting's ``from_…_mechanism`` make it, without loops."""
    from dp_accounting.pld import pld_pmf, privacy_loss_distribution, privacy_loss_mechanism

    if q == 1.0:
        return privacy_loss_distribution.from_gaussian_mechanism(
            sigma, value_discretization_interval=width, log_mass_truncation_bound=cut
        )
    pmfs = []
    for direction, alone, together in (
        ("REMOVE", delta_if_removed, mixture_if_removed),
        ("ADD", delta_if_added, mixture_if_added),
    ):
        how = {
            "log_mass_truncation_bound": cut,
            "adjacency_type": privacy_loss_mechanism.AdjacencyType[direction],
        }
        loss: Any
        if group == 1:
            loss = privacy_loss_mechanism.GaussianPrivacyLoss(sigma, sampling_prob=q, **how)
        else:
            drawn = np.exp(binomial_logs(group, q))
            counts = range(group + 1)
            loss = privacy_loss_mechanism.MixtureGaussianPrivacyLoss(sigma, counts, drawn, **how)
        bounds = loss.connect_dots_bounds()
        lower = math.floor(bounds.epsilon_lower / width)
        upper = math.ceil(bounds.epsilon_upper / width)
        grid = np.arange(lower, upper + 1) * width
        deltas = alone(grid, sigma, q) if group == 1 else together(grid, sigma, q, group)
        pmfs.append(
            pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(width, lower, upper, deltas)
        )
    return privacy_loss_distribution.PrivacyLossDistribution(*pmfs)


def delta_if_removed(epsilons: Array, sigma: float, q: float) -> Array:
    """Hockey-stick divergence of (1−q)·N(0,σ²) + q·N(1,σ²) from N(0,σ²) at each ε.

    It is q times that of the unsampled Gaussian at ln(1 + (e^ε − 1)/q) (Balle, Barthe & Gaboardi
    2018, Theorem 2), and 1 − e^ε where that logarithm does not exist.
    """
    inner, exists = _unsampled(epsilons, q)
    above = sigma * inner + 0.5 / sigma
    gaussian = ndtr(1.0 / sigma - above) - np.exp(inner + log_ndtr(-above))
    deltas: Array = np.where(exists, q * gaussian, -np.expm1(epsilons))
    return np.clip(deltas, 0.0, 1.0)


def delta_if_added(epsilons: Array, sigma: float, q: float) -> Array:
    """Hockey-stick divergence of N(0,σ²) from (1−q)·N(0,σ²) + q·N(1,σ²) at each ε."""
    inner, exists = _unsampled(-epsilons, q)
    below = sigma * inner + 0.5 / sigma
    gaussian = np.exp(inner + log_ndtr(below)) - ndtr(below - 1.0 / sigma)
    with np.errstate(over="ignore", invalid="ignore"):
        deltas: Array = np.where(exists, q * np.exp(epsilons) * gaussian, 0.0)
    return np.clip(deltas, 0.0, 1.0)


def _unsampled(epsilons: Array, q: float) -> tuple[Array, NDArray[np.bool_]]:
    """ln(1 + (e^ε − 1)/q) where it exists, and where it does."""
    with np.errstate(over="ignore"):
        numerator = np.expm1(np.minimum(epsilons, 50.0)) + q
    exists = numerator > 0.0
    logarithm = np.log(np.where(exists, numerator, 1.0))
    # Beyond ε = 50 the "− 1 + q" is below the last digit.
    logarithm = np.where(epsilons > 50.0, epsilons, logarithm)
    return logarithm - math.log(q), exists


def _power(step: Any, count: int, tail: float) -> Any:
    """``step`` composed ``count`` times, at most ``tail`` of its mass cut off."""
    if count == 1:
        return step
    if count <= _STAGE:
        return step.self_compose(count, tail)
    # A divisor of the count saves composing a remainder.
    stage = next((s for s in range(_STAGE, _STAGE // 4, -1) if count % s == 0), _STAGE)
    stages, rest = divmod(count, stage)
    result = step.self_compose(stage, tail / (4.0 * stages)).self_compose(stages, tail / 4.0)
    if rest:
        result = result.compose(_power(step, rest, tail / 4.0), tail / 4.0)
    return result


# What one Poisson-sampled step shows of a group of k units at once. Each of the k is drawn by its
# own coin, so the sum moves by j·C with binomial probability. The scalar mixture
# Σ Bin(j; k, q)·N(j, σ²) against N(0, σ²) dominates every vector-valued step (Choquette-Choo,
# Ganesh, Steinke & Thakurta 2023, corollary 4.7; Ganesh 2024, "Tight group-level DP guarantees for
# DP-SGD with sampling via mixture of Gaussians mechanisms").
def binomial_logs(k: int, q: float) -> Array:
    """Log-probabilities that j = 0…k of k units are drawn; q < 1."""
    j = np.arange(k + 1.0)
    chosen = gammaln(k + 1.0) - gammaln(j + 1.0) - gammaln(k - j + 1.0)
    logs: Array = chosen + j * math.log(q) + (k - j) * math.log1p(-q)
    normalised: Array = logs - logsumexp(logs)
    return normalised


def log_ratio(x: Array, sigma: float, q: float, k: int) -> Array:
    """Log of the mixture's density over that of N(0, σ²): the privacy loss of output x."""
    ratio: Array = logsumexp(_terms(x, sigma, q, k), axis=1)
    return ratio


def mixture_if_removed(epsilons: Array, sigma: float, q: float, k: int) -> Array:
    """Hockey-stick divergence of the mixture from N(0, σ²) at each ε."""
    found = epsilons > binomial_logs(k, q)[0]  # the log-ratio never falls below this
    x = _where_ratio_is(np.where(found, epsilons, 0.0), sigma, q, k)
    beyond = np.exp(logsumexp(binomial_logs(k, q) + _log_above(x, sigma, k), axis=1))
    deltas = np.where(found, beyond - np.exp(epsilons + log_ndtr(-x / sigma)), -np.expm1(epsilons))
    return _decreasing(deltas)


def mixture_if_added(epsilons: Array, sigma: float, q: float, k: int) -> Array:
    """Hockey-stick divergence of N(0, σ²) from the mixture at each ε."""
    found = -epsilons > binomial_logs(k, q)[0]
    x = _where_ratio_is(np.where(found, -epsilons, 0.0), sigma, q, k)
    below = logsumexp(binomial_logs(k, q) + _log_above(-x, sigma, -k), axis=1)
    with np.errstate(over="ignore"):
        deltas = np.where(found, np.exp(log_ndtr(x / sigma)) - np.exp(epsilons + below), 0.0)
    return _decreasing(deltas)


def _terms(x: Array, sigma: float, q: float, k: int) -> Array:
    j = np.arange(k + 1.0)
    terms: Array = binomial_logs(k, q) + j * (x[:, None] - 0.5 * j) / sigma**2
    return terms


def _log_above(x: Array, sigma: float, k: int) -> Array:
    """Log of the chance that N(j, σ²) exceeds x, for j = 0…k; for k < 0 towards −k."""
    j = np.arange(abs(k) + 1.0) * math.copysign(1.0, k)
    logs: Array = log_ndtr((j - x[:, None]) / sigma)
    return logs


def _where_ratio_is(losses: Array, sigma: float, q: float, k: int) -> Array:
    """The x at which the log-ratio has each value.

    It is convex and increasing, so Newton's steps from the right come down to it. A threshold that
    is off by h costs O(h²) of the divergence, which is largest at the exact one.
    """
    j = np.arange(1.0, k + 1.0)
    # Each component alone is a lower bound of the ratio, so its crossing lies to the right.
    alone = (losses[:, None] - binomial_logs(k, q)[1:]) * sigma**2 / j + 0.5 * j
    x: Array = alone.min(axis=1)
    for _ in range(_NEWTON):
        terms = _terms(x, sigma, q, k)
        ratio = logsumexp(terms, axis=1)
        slope = np.exp(terms - ratio[:, None]) @ np.arange(k + 1.0) / sigma**2
        step = np.maximum((ratio - losses) / np.maximum(slope, 1e-300), 0.0)
        x = x - step
        if float(step.max(initial=0.0)) <= 1e-9 * sigma:
            break
    return x


def _decreasing(deltas: Array) -> Array:
    """Clipped to [0, 1] and free of rounding's last digits: δ falls with ε."""
    clipped = np.clip(deltas, 0.0, 1.0)
    return np.asarray(np.maximum.accumulate(clipped[::-1])[::-1])
