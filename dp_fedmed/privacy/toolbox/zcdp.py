"""Zero-concentrated differential privacy: ρ of a Gaussian release, and ε from ρ and back.

Bun & Steinke 2016. ρ adds up over releases, which makes it handy on paper; the accountants here
use RDP and PLD because the conversion below is looser than either.
"""

from __future__ import annotations

import math

from dp_fedmed.privacy import _validate


def gaussian_rho(*, sigma: float, sensitivity: float) -> float:
    """ρ = Δ²/(2σ²) of one Gaussian release with noise of standard deviation ``sigma``.

    Example:
        >>> gaussian_rho(sigma=2.0, sensitivity=1.0)
        0.125
    """
    ratio = _validate.positive("sensitivity", sensitivity) / _validate.positive("sigma", sigma)
    return 0.5 * ratio * ratio


def rho_to_sigma(*, rho: float, sensitivity: float) -> float:
    """The noise's standard deviation that makes one Gaussian release ρ-zCDP.

    Example:
        >>> rho_to_sigma(rho=0.125, sensitivity=1.0)
        2.0
    """
    delta_2 = _validate.positive("sensitivity", sensitivity)
    return delta_2 / math.sqrt(2.0 * _validate.positive("rho", rho))


def rho_to_epsilon(*, rho: float, delta: float) -> float:
    """ε = ρ + 2√(ρ ln(1/δ)): Proposition 1.3 of Bun & Steinke 2016.

    Example:
        >>> round(rho_to_epsilon(rho=0.5, delta=1e-5), 3)
        5.299
    """
    rho = _validate.non_negative("rho", rho)
    return rho + 2.0 * math.sqrt(rho * -math.log(_validate.delta("delta", delta)))


def epsilon_to_rho(*, epsilon: float, delta: float) -> float:
    """The largest ρ whose ε at ``delta`` is at most ``epsilon``; inverse of ``rho_to_epsilon``.

    Example:
        >>> rho = epsilon_to_rho(epsilon=1.0, delta=1e-5)
        >>> rho_to_epsilon(rho=rho, delta=1e-5) <= 1.0
        True
    """
    epsilon = _validate.positive("epsilon", epsilon)
    log_term = -math.log(_validate.delta("delta", delta))
    # (√(L+ε) − √L)², written without cancellation, and rounded down.
    root = epsilon / (math.sqrt(log_term + epsilon) + math.sqrt(log_term))
    return root * root * (1.0 - 1e-14)
