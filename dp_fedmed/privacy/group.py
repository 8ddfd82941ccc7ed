"""Group privacy: what a guarantee for one record is worth for a person who has several."""

from __future__ import annotations

import math
from typing import Final

from dp_fedmed.privacy import _validate
from dp_fedmed.privacy.composition import History

_STEPS: Final = 400
_DEPTH: Final = 400.0


def group_epsilon(history: History, *, size: int, delta: float) -> float:
    """ε at δ for a group of ``size`` records, given the record-level history.

    A mechanism that is (ε′, δ′)-DP for one record is (kε′, δ′(e^{kε′}−1)/(e^{ε′}−1))-DP for k
    records (Dwork & Roth 2014, theorem 2.2, chained). The δ′ is chosen so that the group's δ is
    met; RDP gives ε′, since it stays valid at the very small δ′ that this takes.

    Returns:
        ε of the group; ``inf`` where no δ′ meets δ.

    Example:
        >>> from dp_fedmed.privacy import PrivacyEvent
        >>> history = History([PrivacyEvent.full(unit="record", noise_multiplier=10.0)])
        >>> one, two = (group_epsilon(history, size=k, delta=1e-5) for k in (1, 2))
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
