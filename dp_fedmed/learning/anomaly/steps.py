"""What the server makes of clients' answers in an anomaly task.

A noised mean of vectors becomes the next state of a statistic: post-processing of what was released
and of public numbers. Rows become one memory bank; that is for data that need no protection.
"""

from __future__ import annotations

import numpy as np

from dp_fedmed.learning.anomaly.bank import merge_banks
from dp_fedmed.learning.anomaly.detector import BANK, Detector, packed_state, unpacked_state
from dp_fedmed.learning.anomaly.statistics import step_of
from dp_fedmed.learning.server_step import Arrays, SharedModel, State, WeightedMean
from dp_fedmed.privacy.streams.reproducible import stream
from dp_fedmed.progress import telling

VECTOR = "vector"


class _Stateless(SharedModel):
    """Nothing is kept between rounds besides the model."""

    def moments(self) -> State:
        """Nothing."""
        return {}

    def restore(self, moments: Arrays) -> None:
        """Nothing to restore."""


class StatisticStep(_Stateless):
    """The next state of a private statistic; `noise_std` is in each coordinate of the mean."""

    def __init__(self, detector: Detector, noise_std: float) -> None:
        self.detector, self.noise_std = detector, noise_std

    def answer_like(self, model: Arrays) -> Arrays:
        """One vector, as long as the step wants it."""
        state = dict(model)
        step = step_of(unpacked_state(state))
        return {VECTOR: np.zeros(self.detector.statistic(state).vector_size(step))}

    def collector(self, model: Arrays) -> WeightedMean:
        """Means that clients have noised themselves are averaged."""
        return WeightedMean(self.answer_like(model))

    def step(self, model: Arrays, combined: Arrays) -> State:
        """The state after this release."""
        state = dict(model)
        after = self.detector.statistic(state).update(
            unpacked_state(state),
            np.asarray(combined[VECTOR], np.float64),
            noise_std=self.noise_std,
        )
        return {**state, **packed_state(after)}


class BankStep(_Stateless):
    """The k-center of all clients' rows."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def answer_like(self, model: Arrays) -> Arrays:
        """As many rows as the bank has."""
        return {BANK: model[BANK]}

    def collector(self, model: Arrays) -> RowUnion:
        """Rows do not add up: they are put side by side."""
        return RowUnion(len(model[BANK]), self.seed)

    def step(self, model: Arrays, combined: Arrays) -> State:
        """The merged bank."""
        return {**model, BANK: np.asarray(combined[BANK])}


class RowUnion:
    """All rows of all clients; whoever sent them, they count the same."""

    def __init__(self, size: int, seed: int) -> None:
        self.size, self.seed = size, seed
        self.banks: list[np.ndarray[tuple[int, int], np.dtype[np.float32]]] = []

    def add(self, answer: Arrays, weight: float) -> None:
        """One client's rows, unless it has no images."""
        if weight > 0:
            self.banks.append(np.asarray(answer[BANK], dtype=np.float32))

    def result(self) -> State | None:
        """As many rows as the bank has, far from each other."""
        if not self.banks:
            return None
        said = telling("merging banks")
        return {BANK: merge_banks(self.banks, self.size, seed=self.seed, progress=said)}


class NoisyRowsStep(BankStep):
    """All clients' noised rows, or a random choice of as many as there is room for."""

    def collector(self, model: Arrays) -> RowSample:
        """A k-center of them would choose those with the most noise."""
        return RowSample(len(model[BANK]), self.seed)


class RowSample(RowUnion):
    """The distinct rows of all clients: one that had few repeated them."""

    def result(self) -> State | None:
        """As many rows as there is room for; with fewer, they are repeated."""
        if not self.banks:
            return None
        rows = np.unique(np.concatenate(self.banks), axis=0)
        order = stream(self.seed, "noisy-rows").permutation(len(rows))
        return {BANK: np.resize(rows[order], (self.size, rows.shape[1]))}
