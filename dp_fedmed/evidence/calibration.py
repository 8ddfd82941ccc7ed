"""Scores made comparable between classes, each half of the records by the other half.

A record of a hard class has a high loss whether or not it was trained on. What is usual for its
class is measured on held-out records only, and never on the half that is then judged by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dp_fedmed.data.splits import stratified_cut

Floats = NDArray[np.float64]
Classes = NDArray[np.int64]

#: A class with fewer held-out records is judged by all classes together.
FEWEST = 8
_IQR_OF_NORMAL = 1.349


@dataclass(frozen=True, eq=False)
class Scored:
    """Scores of records, and the class of each.

    >>> len(Scored(np.zeros(3), np.array([0, 1, 1])).take(np.array([0, 2])))
    2
    """

    scores: Floats
    classes: Classes

    def __len__(self) -> int:
        return len(self.scores)

    def take(self, indices: NDArray[np.int64]) -> Scored:
        """Those at these positions."""
        return Scored(self.scores[indices], self.classes[indices])


def same_mix(first: Scored, second: Scored, *, seed: int) -> tuple[Scored, Scored]:
    """As many of both as have the same mix of classes; which ones is drawn, not chosen.

    >>> one = Scored(np.zeros(4), np.array([0, 0, 1, 1]))
    >>> other = Scored(np.zeros(3), np.array([0, 1, 1]))
    >>> [len(kept) for kept in same_mix(one, other, seed=0)]
    [3, 3]
    """
    names = np.union1d(first.classes, second.classes)
    shares = np.minimum(*(_counts(part, names) / max(1, len(part)) for part in (first, second)))
    kept = []
    for label, part in (("first", first), ("second", second)):
        chosen = []
        for name, share in zip(names, shares, strict=True):
            there = np.flatnonzero(part.classes == name)
            wanted = min(len(there), round(share * len(part)))
            taken, _ = stratified_cut(
                np.zeros(len(there)), (wanted,), seed=seed, purpose=f"attack-{label}-{name}"
            )
            chosen.append(there[taken])
        kept.append(part.take(np.sort(np.concatenate(chosen)).astype(np.int64)))
    return kept[0], kept[1]


def _counts(part: Scored, names: Classes) -> Floats:
    return np.array([(part.classes == name).sum() for name in names], dtype=np.float64)


def halves(part: Scored, *, seed: int, purpose: str) -> tuple[Scored, Scored]:
    """Two disjoint halves, alike in classes."""
    one, other = stratified_cut(part.classes, (len(part) // 2,), seed=seed, purpose=purpose)
    return part.take(one), part.take(other)


class UsualScores:
    """Median and spread of held-out scores, by class."""

    def __init__(self, held_out: Scored) -> None:
        self._all = _usual(held_out.scores)
        self._by_class: Mapping[int, tuple[float, float]] = {
            int(name): _usual(scores)
            for name in np.unique(held_out.classes)
            if len(scores := held_out.scores[held_out.classes == name]) >= FEWEST
        }

    def compared(self, part: Scored) -> Floats:
        """How far above what is usual for its class each score is, in spreads."""
        usual = np.array([self._by_class.get(int(c), self._all) for c in part.classes])
        usual = usual.reshape(len(part), 2)
        return np.asarray((part.scores - usual[:, 0]) / usual[:, 1], dtype=np.float64)


def _usual(scores: Floats) -> tuple[float, float]:
    low, middle, high = np.quantile(scores, (0.25, 0.5, 0.75))
    spread = (high - low) / _IQR_OF_NORMAL or float(scores.std()) or 1.0
    return float(middle), float(spread)
