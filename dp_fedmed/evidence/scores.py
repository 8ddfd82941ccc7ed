"""One number per record that says how much a model looks as if it had seen it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from dp_fedmed.data import Records
from dp_fedmed.errors import ConfigError
from dp_fedmed.evidence.finished_run import FinishedRun
from dp_fedmed.learning.anomaly.learner import AnomalyLearner
from dp_fedmed.learning.networks.learner import NetworkLearner
from dp_fedmed.learning.networks.task import predictions

Floats = NDArray[np.float64]
Advance = Callable[[int], None]

SMALLEST_LOSS, LARGEST_LOSS = 1e-15, 1e4
IMAGES_AT_ONCE = 32


@dataclass(frozen=True)
class Scorer:
    """How records are scored, and in words."""

    name: str
    score: Callable[[Records, Advance], Floats]


def make_scorer(run: FinishedRun) -> Scorer:
    """The attack that fits what the run has learnt."""
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

    return Scorer("loss threshold", score)


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


def _anomaly_scorer(learner: AnomalyLearner, run: FinishedRun) -> Scorer:
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

    return Scorer(
        "nearest distance to the memory bank" if detector.has_rows else "mean patch score", score
    )
