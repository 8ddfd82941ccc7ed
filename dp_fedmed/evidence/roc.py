"""How well scores tell members from others, with intervals; a higher score speaks for a member."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

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
    def _missed(self) -> tuple[Floats, Floats, Floats]:
        """Every threshold, with the shares of members and of others that lie below it."""
        thresholds = np.unique(np.concatenate([self.members, self.others]))
        members, others = (
            np.searchsorted(np.sort(scores), thresholds) / len(scores)
            for scores in (self.members, self.others)
        )
        return thresholds, members, others

    @cached_property
    def points(self) -> tuple[Floats, Floats]:
        """(FPR, TPR) at every threshold that changes one of them, from (0, 0) to (1, 1)."""
        _, members, others = self._missed
        return np.append(0.0, 1.0 - others[::-1]), np.append(0.0, 1.0 - members[::-1])

    @cached_property
    def _placements(self) -> tuple[Floats, Floats]:
        """For each member the share of others below it, for each other of members above it."""

        def below(values: Floats, others: Floats) -> Floats:
            among = np.sort(others)
            left = np.searchsorted(among, values, side="left")
            return (left + np.searchsorted(among, values, side="right")) / (2.0 * len(among))

        return below(self.members, self.others), 1.0 - below(self.others, self.members)

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
        thresholds, members, others = self._missed
        return float(thresholds[int((others - members).argmax())])


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
