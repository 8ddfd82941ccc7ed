"""How well scores tell members from others, with intervals; and the most that (ε, δ) allows.

Pure arithmetic on scores, of which a higher one speaks for a member.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Interval = tuple[float, float]

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Roc:
    """Scores of members and of others, and what any threshold would make of them.

    >>> curve = Roc(np.array([3.0, 2.0]), np.array([1.0, 0.0]))
    >>> curve.auc, curve.tpr_at(0.0)
    (1.0, 1.0)
    """

    members: Floats
    others: Floats

    def __post_init__(self) -> None:
        if len(self.members) == 0 or len(self.others) == 0:
            raise ValueError("a ROC needs members and others, at least one of each")
        if not (np.isfinite(self.members).all() and np.isfinite(self.others).all()):
            raise ValueError("a ROC needs finite scores")

    @cached_property
    def points(self) -> tuple[Floats, Floats]:
        """(FPR, TPR) at every threshold that changes one of them, from (0, 0) to (1, 1)."""
        thresholds = np.unique(np.concatenate([self.members, self.others]))[::-1]
        members, others = np.sort(self.members), np.sort(self.others)
        tpr = 1.0 - np.searchsorted(members, thresholds, side="left") / len(members)
        fpr = 1.0 - np.searchsorted(others, thresholds, side="left") / len(others)
        return np.concatenate([[0.0], fpr]), np.concatenate([[0.0], tpr])

    @cached_property
    def _placements(self) -> tuple[Floats, Floats]:
        """For each member the share of others below it, for each other of members above it."""
        members, others = np.sort(self.members), np.sort(self.others)

        def below(values: Floats, among: Floats) -> Floats:
            left = np.searchsorted(among, values, side="left")
            return (left + np.searchsorted(among, values, side="right")) / (2.0 * len(among))

        return below(self.members, others), 1.0 - below(self.others, members)

    @property
    def auc(self) -> float:
        """The chance that a member scores above another; ties count half."""
        return float(self._placements[0].mean())

    def auc_interval(self, confidence: float = CONFIDENCE) -> Interval:
        """By DeLong's variance (1988); exact where the two do not overlap at all."""
        from scipy.stats import norm

        a, b = self._placements
        fewer = min(len(a), len(b))
        if fewer < 2:
            return 0.0, 1.0
        spread = math.sqrt(float(a.var(ddof=1)) / len(a) + float(b.var(ddof=1)) / len(b))
        if spread == 0.0:
            hits = round(self.auc * fewer)
            return clopper_pearson(hits, fewer, confidence) if hits in (0, fewer) else (0.0, 1.0)
        reach = float(norm.ppf(0.5 + confidence / 2)) * spread
        return max(0.0, self.auc - reach), min(1.0, self.auc + reach)

    def tpr_at(self, fpr: float) -> float:
        """The largest TPR of a threshold whose false positives are at most this share."""
        found, tpr = self.points
        return float(tpr[found <= fpr + 1e-12].max())

    def tpr_interval_at(self, fpr: float) -> Interval:
        """Clopper and Pearson's interval for that TPR, given its threshold."""
        return clopper_pearson(round(self.tpr_at(fpr) * len(self.members)), len(self.members))

    @property
    def best_threshold(self) -> float:
        """Where TPR − FPR is largest."""
        thresholds = np.unique(np.concatenate([self.members, self.others]))
        members, others = np.sort(self.members), np.sort(self.others)
        gap = np.searchsorted(others, thresholds) / len(others) - np.searchsorted(
            members, thresholds
        ) / len(members)
        return float(thresholds[int(gap.argmax())])


def clopper_pearson(hits: int, trials: int, confidence: float = CONFIDENCE) -> Interval:
    """The exact two-sided interval of a share (Clopper & Pearson 1934).

    >>> low, high = clopper_pearson(0, 100)
    >>> low, round(high, 4)
    (0.0, 0.0362)
    """
    from scipy.stats import beta

    if not 0 <= hits <= trials or trials == 0:
        raise ValueError(f"{hits} of {trials} is not a share")
    tail = (1.0 - confidence) / 2.0
    low = float(beta.ppf(tail, hits, trials - hits + 1)) if hits > 0 else 0.0
    high = float(beta.isf(tail, hits + 1, trials - hits)) if hits < trials else 1.0
    return low, high


def largest_tpr(fpr: Any, *, epsilon: float, delta: float) -> Any:
    """The most that any attack on an (ε, δ)-private mechanism can reach at this FPR.

    TPR ≤ e^ε·FPR + δ, and the same with the roles exchanged: 1 − FPR ≤ e^ε·(1 − TPR) + δ
    (Kairouz, Oh & Viswanath 2015).

    >>> round(float(largest_tpr(0.01, epsilon=1.0, delta=0.0)), 4)
    0.0272
    """
    at = np.asarray(fpr, dtype=np.float64)
    forth = at * math.exp(min(epsilon, 700.0)) + delta
    back = 1.0 - np.maximum(1.0 - at - delta, 0.0) * math.exp(-epsilon)
    return np.clip(np.minimum(forth, back), 0.0, 1.0)


def largest_advantage(*, epsilon: float, delta: float) -> float:
    """The most that TPR − FPR can be under (ε, δ).

    >>> round(largest_advantage(epsilon=1.0, delta=0.0), 4)
    0.4621
    """
    share = math.tanh(epsilon / 2.0)  # (e^ε − 1)/(e^ε + 1)
    return min(1.0, share + delta * (1.0 - share))
