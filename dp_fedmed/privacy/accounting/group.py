"""Groups of units: a person with several records, and guarantees for different neighbours.

Every number here is an upper bound; where several hold, the smallest is taken.
"""

from __future__ import annotations

import math
from typing import Final

from dp_fedmed.privacy import _validate
from dp_fedmed.privacy.accounting.history import History, Method
from dp_fedmed.privacy.accounting.pld import pld_epsilon

_STEPS: Final = 400
_DEPTH: Final = 400.0


def group_epsilon(history: History, *, size: int, delta: float) -> float:
    """ε at δ for a group of ``size`` records that come or go together.

    The smaller of two bounds: the chain of ``chained_epsilon``, and the exact composition of
    mixtures of Gaussians (Ganesh 2024), which is a Gaussian of σ/k where q = 1.

    Returns:
        ε of the group; ``inf`` where neither bound is finite.

    Example:
        >>> from dp_fedmed.privacy import PrivacyEvent
        >>> history = History([PrivacyEvent.poisson(
        ...     unit="record", noise_multiplier=0.6, sample_rate=0.01, count=100)])
        >>> 2 * group_epsilon(history, size=3, delta=1e-5) < chained_epsilon(
        ...     history, size=3, delta=1e-5)
        True
    """
    k = _validate.count("size", size)
    delta = _validate.delta("delta", delta)
    if not history:
        return 0.0
    if k == 1:
        return history.epsilon(delta=delta, method="tight")
    bounds = [chained_epsilon(history, size=k, delta=delta)]
    if history.is_poisson:
        bounds.append(pld_epsilon(history.rows(), delta=delta, group=k))
    return min(bounds)


def chained_epsilon(history: History, *, size: int, delta: float) -> float:
    """ε at δ for ``size`` changes of one unit each, whatever they are.

    A mechanism that is (ε′, δ′)-DP for one record is (kε′, δ′(e^{kε′}−1)/(e^{ε′}−1))-DP for k
    records (Dwork & Roth 2014, theorem 2.2, chained). The δ′ is chosen so that the group's δ is
    met; RDP gives ε′, since it stays valid at the very small δ′ that this takes.

    Returns:
        ε of the group; ``inf`` where no δ′ meets δ.

    Example:
        >>> from dp_fedmed.privacy import PrivacyEvent
        >>> history = History([PrivacyEvent.full(unit="record", noise_multiplier=10.0)])
        >>> one, two = (chained_epsilon(history, size=k, delta=1e-5) for k in (1, 2))
        >>> two > 2 * one
        True
    """
    k = _validate.count("size", size)
    delta = _validate.delta("delta", delta)
    if k == 1:
        return history.epsilon(delta=delta, method="rdp")
    best = math.inf
    for i in range(_STEPS + 1):
        log_delta = math.log(delta) - _DEPTH * (i / _STEPS) ** 2
        epsilon = history.epsilon(delta=max(math.exp(log_delta), 1e-300), method="rdp")
        if _log_group_delta(epsilon, log_delta, k) <= math.log(delta):
            best = min(best, k * epsilon)
    return best


def _log_group_delta(epsilon: float, log_delta: float, k: int) -> float:
    """Log of δ′(e^{kε}−1)/(e^ε−1), by its k terms."""
    terms = [i * epsilon for i in range(k)]
    top = max(terms)
    return log_delta + top + math.log(math.fsum(math.exp(term - top) for term in terms))


def mixed_epsilon(
    removed: History, replaced: History, *, delta: float, method: Method = "rdp"
) -> float:
    """ε for one unit after steps that were stated for different neighbouring relations.

    Brought to the weaker relation, which is replacement: a full step moves by 2C instead of C, so
    σ counts half; a sampled one is chained, since a replacement is a removal and an addition. The
    two parts then get half of δ each, and add up.

    Args:
        removed: Steps stated for a unit whose contribution is there or not.
        replaced: Steps stated for a unit that is replaced.
        delta: δ of the result.
        method: Converts what needs no chain.

    Example:
        >>> from dp_fedmed.privacy import PrivacyEvent
        >>> step = PrivacyEvent.full(unit="record", noise_multiplier=4.0)
        >>> other = PrivacyEvent.full(
        ...     unit="record", noise_multiplier=4.0, adjacency="replace_one")
        >>> mixed = mixed_epsilon(History([step]), History([other]), delta=1e-5)
        >>> mixed == History([other, other]).epsilon(delta=1e-5)
        True
    """
    if not replaced:
        return removed.epsilon(delta=delta, method=method)
    full, sampled = removed.halved()
    moved = replaced.plus(full)
    if not sampled:
        return moved.epsilon(delta=delta, method=method)
    chained = chained_epsilon(sampled, size=2, delta=delta / 2.0)
    return moved.epsilon(delta=delta / 2.0, method=method) + chained
