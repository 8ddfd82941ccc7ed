"""The Gaussian mechanism without sampling, in closed form: δ from ε, ε from δ, σ from both.

Composing T such releases is one release with σ/√T, so this is also the exact accountant of every
history with q = 1. All three functions err on the side of privacy in their last digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from scipy.special import log_ndtr

from dp_fedmed.privacy import _validate

#: Relative inflation of ε and σ: covers the rounding of the closed form, which is below 1e-10.
_ROUNDING: Final = 1e-9


def gaussian_delta(*, noise_multiplier: float, epsilon: float) -> float:
    """Smallest δ for which one Gaussian release is (ε, δ)-DP; sensitivity 1, add/remove.

    Theorem 8 of Balle & Wang 2018, "Improving the Gaussian mechanism": δ is the difference of
    two normal tails.

    Example:
        >>> delta = gaussian_delta(noise_multiplier=1.0, epsilon=4.3772)
        >>> round(delta * 1e5, 3)
        1.0
    """
    sigma = _validate.noise_multiplier("noise_multiplier", noise_multiplier)
    return math.exp(_log_delta(sigma, _validate.non_negative("epsilon", epsilon)))


def gaussian_epsilon(*, noise_multiplier: float, delta: float) -> float:
    """Exact ε of one Gaussian release at ``delta``.

    Example:
        >>> round(gaussian_epsilon(noise_multiplier=1.0, delta=1e-5), 4)
        4.3772
    """
    sigma = _validate.noise_multiplier("noise_multiplier", noise_multiplier)
    log_target = math.log(_validate.delta("delta", delta))
    if _log_delta(sigma, 0.0) <= log_target:
        return 0.0
    # The privacy loss is N(1/2σ², 1/σ²), so its sub-Gaussian tail gives an ε that suffices.
    enough = 0.5 / sigma**2 + math.sqrt(-2.0 * log_target) / sigma
    epsilon = _smallest(lambda e: _log_delta(sigma, e) <= log_target, 0.0, enough)
    return epsilon * (1.0 + _ROUNDING)


def gaussian_sigma(*, epsilon: float, delta: float) -> float:
    """Smallest σ for which one Gaussian release of sensitivity 1 is (ε, δ)-DP.

    Example:
        >>> round(gaussian_sigma(epsilon=1.0, delta=1e-5), 3)
        3.731
    """
    epsilon = _validate.positive("epsilon", epsilon)
    log_target = math.log(_validate.delta("delta", delta))
    lo = hi = 1.0
    while _log_delta(lo, epsilon) <= log_target:
        lo /= 2.0
    while _log_delta(hi, epsilon) > log_target:
        hi *= 2.0
    return _smallest(lambda s: _log_delta(s, epsilon) <= log_target, lo, hi) * (1.0 + _ROUNDING)


def _log_delta(sigma: float, epsilon: float) -> float:
    upper = float(log_ndtr(0.5 / sigma - epsilon * sigma))
    lower = epsilon + float(log_ndtr(-0.5 / sigma - epsilon * sigma))
    gap = lower - upper
    # For a huge σ the two tails agree to the last bit; 1e-300 stands for "nothing measurable".
    return upper + math.log(max(-math.expm1(min(gap, 0.0)), 1e-300))


def _smallest(holds: Callable[[float], bool], lo: float, hi: float) -> float:
    """Bisect for the smallest argument at which a monotone condition holds; it holds at hi."""
    for _ in range(200):
        middle = 0.5 * (lo + hi)
        if hi - lo <= 1e-13 * hi or not lo < middle < hi:
            break
        if holds(middle):
            hi = middle
        else:
            lo = middle
    return hi
