"""Rényi differential privacy of the Gaussian mechanism under sampling, as sound upper bounds.

The guarantee kept here: every number returned is at least the true Rényi divergence (up to the
inflation below, which covers rounding), so an epsilon converted from it never under-reports.
"""

from __future__ import annotations

import functools
import math
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from dp_fedmed.privacy.accounting.events import Steps

Array = NDArray[np.float64]

#: Opacus' grid (1.1 … 10.9, 12 … 63), a few orders near 1 for very large ε, a sparse tail
#: for very small ε: the optimum of σ=50, q=.1, T=100 lies near 300.
ORDERS: Final[Array] = np.array(
    sorted(
        {1.0 + x / 10.0 for x in range(1, 100)}
        | {1.005, 1.01, 1.02, 1.03, 1.05, 1.07, 1.15}
        | {float(a) for a in range(11, 65)}
        | {72.0, 80.0, 96.0, 112.0, 128.0, 160.0, 192.0, 256.0, 320.0, 384.0, 512.0, 768.0, 1024.0}
    )
)
ORDERS.setflags(write=False)

#: Relative inflation of every divergence: quadrature and summation are good to about 1e-12.
_ROUNDING: Final = 1e-10
#: Below this σ the quadrature would need thousands of nodes; convexity in the order bounds the
#: fractional orders instead (ε is in the hundreds there whatever one does).
_SMALLEST_QUADRATURE_SIGMA: Final = 0.2

_IS_INTEGER: Final = np.mod(ORDERS, 1.0) == 0.0
_INTEGERS: Final = ORDERS[_IS_INTEGER]
_FRACTIONS: Final = ORDERS[~_IS_INTEGER]


def sampled_gaussian_rdp(*, noise_multiplier: float, sample_rate: float) -> Array:
    """RDP at every order of ``ORDERS`` of one Poisson-sampled Gaussian step.

    Add/remove (equally: zero-out) adjacency, sensitivity 1, noise of standard deviation
    ``noise_multiplier``. Exact up to an inflation of 1e-10, after Mironov, Talwar & Zhang 2019,
    "Rényi differential privacy of the sampled Gaussian mechanism".

    The array is read-only and aligned with ``ORDERS``.

    Example:
        >>> rdp = sampled_gaussian_rdp(noise_multiplier=2.0, sample_rate=1.0)
        >>> bool(abs(rdp[ORDERS == 8.0][0] - 8 / (2 * 2.0**2)) < 1e-9)
        True
    """
    return _sampled_gaussian_rdp(float(noise_multiplier), float(sample_rate))


def without_replacement_rdp(*, noise_multiplier: float, sample_rate: float) -> Array:
    """RDP of one Gaussian step on a cohort of exactly k of n, under replace-one adjacency.

    Replacing a unit moves the clipped sum by up to 2C, so the mechanism inside is a Gaussian
    with σ/2; the amplification is Theorem 9 of Wang, Balle & Kasiviswanathan 2019. Using the
    Poisson formula here would under-report. The unamplified Gaussian caps the bound.

    Here σ is relative to the clipping norm C (not to the sensitivity 2C), and q is k/n. The array
    is read-only and aligned with ``ORDERS``.
    """
    return _without_replacement_rdp(float(noise_multiplier), float(sample_rate))


def rdp_to_epsilon(rdp: Array, *, delta: float) -> tuple[float, float]:
    """Convert RDP over ``ORDERS`` to the smallest ε it proves at ``delta``.

    Proposition 12 of Canonne, Kamath & Steinke 2020, which is a theorem for each order alone;
    the minimum over orders is therefore valid too.

    Args:
        rdp: Divergences aligned with ``ORDERS``; infinite entries are ignored.
        delta: δ in (0, 1).

    Returns:
        ``(epsilon, order)``; ε is at least 0, and infinite if no order is finite.

    Example:
        >>> rdp = sampled_gaussian_rdp(noise_multiplier=1.0, sample_rate=1.0)
        >>> epsilon, order = rdp_to_epsilon(rdp, delta=1e-5)
        >>> round(epsilon, 3), round(order, 1)
        (4.729, 5.4)
    """
    epsilons = rdp + conversion_terms(delta)
    best = int(np.argmin(epsilons))
    epsilon = float(epsilons[best])
    return (max(0.0, epsilon) if not math.isnan(epsilon) else math.inf), float(ORDERS[best])


def composed_epsilon(steps: Steps, *, delta: float) -> tuple[float, float]:
    """ε of a history at ``delta``, and the order that gives it."""
    # numpy picks the order, fsum gives the number: each order is a proof by itself, so a
    # rounding error in the choice costs tightness in the last digit, never soundness.
    keys = sorted(steps)
    counts = [float(steps[key]) for key in keys]
    curves = [_curve(*key) for key in keys]
    terms = conversion_terms(delta)
    # A plain sum over rows, not a matrix product: BLAS may add in another order tomorrow.
    rough = (np.array(curves) * np.array(counts)[:, None]).sum(axis=0) + terms
    best = int(np.argmin(rough))
    total = math.fsum(steps[key] * float(c[best]) for key, c in zip(keys, curves, strict=True))
    return max(0.0, total + float(terms[best])), float(ORDERS[best])


def _curve(kind: str, sigma: float, q: float) -> Array:
    return (_sampled_gaussian_rdp if kind == "poisson" else _without_replacement_rdp)(sigma, q)


@functools.lru_cache(maxsize=256)
def conversion_terms(delta: float) -> Array:
    """What each order adds to its RDP to become an ε at ``delta``."""
    a = ORDERS
    terms = np.log1p(-1.0 / a) - (math.log(delta) + np.log(a)) / (a - 1.0)
    terms.setflags(write=False)
    return terms


@functools.lru_cache(maxsize=2**15)
def _sampled_gaussian_rdp(sigma: float, q: float) -> Array:
    if q == 1.0:
        result = ORDERS / (2.0 * sigma * sigma)
    else:
        log_excess = np.empty_like(ORDERS)
        log_excess[_IS_INTEGER] = _log_excess_integer(sigma, q)
        if sigma >= _SMALLEST_QUADRATURE_SIGMA:
            log_excess[~_IS_INTEGER] = _log_excess_quadrature(sigma, q, _FRACTIONS)
            result = np.logaddexp(0.0, log_excess) / (ORDERS - 1.0)
        else:
            result = _interpolate(np.logaddexp(0.0, log_excess[_IS_INTEGER]))
        # Sampling never hurts, and the unsampled divergence has no quadrature in it.
        result = np.minimum(result, ORDERS / (2.0 * sigma * sigma))
    return _sealed(result)


@functools.lru_cache(maxsize=2**15)
def _without_replacement_rdp(sigma: float, q: float) -> Array:
    inner = sigma / 2.0
    unamplified = ORDERS / (2.0 * inner * inner)
    if q == 1.0:
        return _sealed(unamplified)
    k, log_binomial = _binomials()
    with np.errstate(over="ignore", divide="ignore"):
        log_moment = math.log(2.0) + k * (k - 1.0) / (2.0 * inner * inner)
        second = min(math.log(4.0) + _log_expm1(np.array(1.0 / inner**2)), log_moment[0])
    log_moment[0] = second
    log_terms = log_binomial + (k * math.log(q) + log_moment)
    log_a = np.logaddexp(0.0, _logsumexp_rows(log_terms))
    return _sealed(np.minimum(_interpolate(log_a), unamplified))


def _sealed(rdp: Array) -> Array:
    result = rdp * (1.0 + _ROUNDING)
    result.setflags(write=False)
    return result


def _log_excess_integer(sigma: float, q: float) -> Array:
    """log(A_α − 1) at the integer orders, A_α = Σ C(α,k)(1−q)^(α−k) q^k exp(k(k−1)/2σ²).

    The binomial weights sum to 1, so subtracting 1 turns each exp into expm1: every term stays
    positive and nothing cancels, however small q or large σ.
    """
    k, log_binomial = _binomials()
    log_terms = k * (math.log(q) - math.log1p(-q)) + _log_expm1(k * (k - 1.0) / (2.0 * sigma**2))
    log_sum: Array = _logsumexp_rows(log_binomial + log_terms) + _INTEGERS * math.log1p(-q)
    return log_sum


@functools.lru_cache(maxsize=1)
def _binomials() -> tuple[Array, Array]:
    """The k from 2 to 1024, and log C(α, k) for each integer order (−inf where k > α)."""
    k = np.arange(2.0, _INTEGERS[-1] + 1.0)
    a = _INTEGERS[:, None]
    inside = k[None, :] <= a
    gap = np.where(inside, a - k, 0.0)
    log_binomial = gammaln(a + 1.0) - gammaln(k + 1.0) - gammaln(gap + 1.0)
    return k, np.where(inside, log_binomial, -np.inf)


def _log_excess_quadrature(sigma: float, q: float, alphas: Array) -> Array:
    """log(A_α − 1) at any orders, by the trapezoidal rule.

    A_α − 1 = E[(1+u)^α − 1 − αu] with u = q(exp((2z−1)/2σ²) − 1), z ~ N(0, σ²), because E[u]=0.
    The integrand is positive and analytic in a strip of half-width πσ (in units of σ), so the
    trapezoidal rule converges geometrically (Trefethen & Weideman 2014).
    """
    step = min(0.25, 0.4 * sigma)
    top = max(2.0, float(alphas[-1])) / sigma + 9.5
    t = np.arange(-9.5, top + step, step)
    v = (2.0 * sigma * t - 1.0) / (2.0 * sigma**2)
    log_qr = math.log(q) + v
    # log(1 + u), by whichever form keeps its relative accuracy.
    ell = np.where(
        log_qr < 0.0,
        np.log1p(q * np.expm1(np.minimum(v, 700.0))),
        np.logaddexp(math.log1p(-q), log_qr),
    )
    log_integrand = _log_bernoulli_gap(ell, alphas) - 0.5 * t * t
    return _logsumexp_rows(log_integrand) + math.log(step / math.sqrt(2.0 * math.pi))


def _log_bernoulli_gap(ell: Array, alphas: Array) -> Array:
    """log[(1+u)^α − 1 − αu] for u = expm1(ell), one row per α, without cancellation."""
    a = alphas[:, None]
    s = a - 1.0
    result = np.empty((len(alphas), len(ell)))
    small = np.abs(ell) < 0.01
    if small.any():
        u = np.expm1(ell[small])
        series = np.zeros((len(alphas), len(u)))
        for j in range(9, 1, -1):
            series = series * u * ((a - j) / (j + 1.0)) + 1.0
        with np.errstate(divide="ignore"):
            result[:, small] = np.log(series * (a * s / 2.0)) + 2.0 * np.log(np.abs(u))
    large = ell[~small]
    with np.errstate(under="ignore"):
        gap = s * np.expm1(-a * large) - a * np.expm1(-s * large)
    result[:, ~small] = a * large + np.log(gap)
    return result


def _interpolate(log_a: Array) -> Array:
    """RDP at all orders from log A at the integer ones.

    α ↦ log A_α is convex with log A_1 = 0, so the chord between neighbouring integers bounds it
    from above.
    """
    knots = np.concatenate(([1.0], _INTEGERS))
    return np.interp(ORDERS, knots, np.concatenate(([0.0], log_a))) / (ORDERS - 1.0)


def _log_expm1(x: Array) -> Array:
    x = np.maximum(x, np.finfo(np.float64).tiny)
    large = x + np.log1p(-np.exp(-np.maximum(x, 1.0)))
    return np.where(x > 1.0, large, np.log(np.expm1(np.minimum(x, 1.0))))


def _logsumexp_rows(log_terms: Array) -> Array:
    peak = log_terms.max(axis=1, keepdims=True)
    peak = np.where(np.isfinite(peak), peak, 0.0)
    with np.errstate(over="ignore", divide="ignore", under="ignore"):
        total: Array = np.log(np.exp(log_terms - peak).sum(axis=1)) + peak[:, 0]
    return total
