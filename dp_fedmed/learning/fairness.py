"""How evenly a metric is spread over clients or categories."""

from __future__ import annotations

from collections.abc import Sequence


def fairness(values: Sequence[float], *, sign: float = 1.0) -> dict[str, float]:
    """The worst value, the gap between best and worst, and Jain's index (1 when all are equal).

    Jain's index is left out where a value is negative: it then says nothing. `sign` is −1 where
    less is better.

    >>> fairness([0.5, 1.0])
    {'worst': 0.5, 'gap': 0.5, 'jain': 0.9}
    >>> fairness([0.5, 1.0], sign=-1.0)["worst"]
    1.0
    """
    if not values:
        return {}
    worst = min(values, key=lambda value: sign * value)
    found = {"worst": worst, "gap": max(values) - min(values)}
    if min(values) < 0.0:
        return found
    squares = sum(value * value for value in values)
    jain = min(1.0, sum(values) ** 2 / (len(values) * squares)) if squares else 1.0
    return found | {"jain": jain}
