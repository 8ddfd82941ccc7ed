"""Mixtures of Gaussians: what one Poisson-sampled step shows of a group of k units at once.

Each of the k is drawn by its own coin, so the sum moves by j·C with binomial probability. The
scalar mixture Σ Bin(j; k, q)·N(j, σ²) against N(0, σ²) dominates every vector-valued step
(Choquette-Choo, Ganesh, Steinke & Thakurta 2023, corollary 4.7; Ganesh 2024, "Tight group-level DP
guarantees for DP-SGD with sampling via mixture of Gaussians mechanisms").
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, log_ndtr, logsumexp

Array = NDArray[np.float64]

_NEWTON: Final = 200


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
