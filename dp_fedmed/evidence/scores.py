"""One number per record that says how much a model looks as if it had seen it.

A record of a hard class has a high loss whether or not it was trained on, so scores are compared
with what is usual for their class. That is measured on held-out records only, and never on the half
that is then judged by it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from dp_fedmed.data import Records
from dp_fedmed.data.splits import stratified_cut
from dp_fedmed.errors import ConfigError
from dp_fedmed.evidence.finished_run import FinishedRun
from dp_fedmed.learning.anomaly.learner import AnomalyLearner
from dp_fedmed.learning.networks.learner import NetworkLearner
from dp_fedmed.learning.networks.task import predictions

Floats = NDArray[np.float64]
Advance = Callable[[int], None]
Score = Callable[[Records, Advance], Floats]

SMALLEST_LOSS, LARGEST_LOSS = 1e-15, 1e4
IMAGES_AT_ONCE = 32
#: A class with fewer held-out records is judged by all classes together.
FEWEST_OF_CLASS = 8
_IQR_OF_NORMAL = 1.349


def make_scorer(run: FinishedRun) -> tuple[str, Score]:
    """The attack that fits what the run has learnt: its name, and how it scores records."""
    learner = run.learner
    if isinstance(learner, AnomalyLearner):
        return _anomaly_scorer(learner, run)
    if not isinstance(learner, NetworkLearner):
        raise TypeError(f"no attack is known for {type(learner).__name__}")
    learner.state.load(run.model)

    def score(records: Records, advance: Advance) -> Floats:
        found = []
        for logits, targets in predictions(learner.model, records, learner.device):
            found.append(learner.task.record_losses(logits.double(), targets))
            advance(len(targets))
        return from_losses(torch.cat(found).numpy()) if found else np.empty(0)

    return "loss threshold", score


def from_losses(losses: NDArray[np.floating]) -> Floats:
    """−log(e^loss − 1): falls with the loss, and is nearly normal (Carlini et al. 2022).

    For cross entropy it is the log odds of the true class. A loss that is no number counts as the
    largest: a record that a model cannot judge does not look like a member.

    >>> from_losses(np.array([np.log(2.0), np.nan])).round(3).tolist()
    [-0.0, -10000.0]
    """
    bounded = np.nan_to_num(np.asarray(losses, np.float64), nan=LARGEST_LOSS, posinf=LARGEST_LOSS)
    bounded = np.clip(bounded, SMALLEST_LOSS, LARGEST_LOSS)
    # log(e^l − 1) = l + log(1 − e^−l), which does not overflow
    return np.asarray(-(bounded + np.log(-np.expm1(-bounded))), dtype=np.float64)


def _anomaly_scorer(learner: AnomalyLearner, run: FinishedRun) -> tuple[str, Score]:
    """The nearest distance to rows that are kept; under a statistic, the mean patch score."""
    detector = learner.detector
    model = detector.scorer(run.model)
    if model is None:
        raise ConfigError(
            f"{run.path} holds no finished run: its detector has not learnt all it is to learn"
        )

    def score(records: Records, advance: Advance) -> Floats:
        found = []
        for start in range(0, len(records), IMAGES_AT_ONCE):
            images = records.x[start : start + IMAGES_AT_ONCE]
            _, patches = detector.scores(model, images)
            found.append(-(patches.min(axis=1) if detector.has_rows else patches.mean(axis=1)))
            advance(len(images))
        return np.concatenate(found).astype(np.float64) if found else np.empty(0)

    name = "nearest distance to the memory bank" if detector.has_rows else "mean patch score"
    return name, score


@dataclass(frozen=True, eq=False)
class Scored:
    """Scores of records, and the class of each.

    >>> len(Scored(np.zeros(3), np.array([0, 1, 1])).take(np.array([0, 2])))
    2
    """

    scores: Floats
    classes: NDArray[np.int64]

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

    def mix(part: Scored) -> Floats:
        counts = [(part.classes == name).sum() for name in names]
        return np.array(counts, np.float64) / max(1, len(part))

    shares = np.minimum(mix(first), mix(second))
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


def halves(part: Scored, *, seed: int, purpose: str) -> tuple[Scored, Scored]:
    """Two disjoint halves, alike in classes."""
    one, other = stratified_cut(part.classes, (len(part) // 2,), seed=seed, purpose=purpose)
    return part.take(one), part.take(other)


class UsualScores:
    """Median and spread of held-out scores, by class."""

    def __init__(self, held_out: Scored) -> None:
        self._all = _usual(held_out.scores)
        self._by_class = {
            int(name): _usual(scores)
            for name in np.unique(held_out.classes)
            if len(scores := held_out.scores[held_out.classes == name]) >= FEWEST_OF_CLASS
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
