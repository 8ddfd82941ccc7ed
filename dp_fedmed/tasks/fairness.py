"""How evenly a metric is spread over clients or categories."""

from __future__ import annotations

from collections.abc import Sequence


def fairness(values: Sequence[float]) -> dict[str, float]:
    """The worst value, the gap between best and worst, and Jain's index (1 when all are equal).

    >>> fairness([0.5, 1.0])
    {'worst': 0.5, 'gap': 0.5, 'jain': 0.9}
    """
    if not values:
        return {}
    squares = sum(value * value for value in values)
    jain = min(1.0, sum(values) ** 2 / (len(values) * squares)) if squares else 1.0
    return {"worst": min(values), "gap": max(values) - min(values), "jain": jain}
