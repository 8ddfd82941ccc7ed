"""What the server makes of a round's answers: the seam between a round and what is learnt in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

State = dict[str, np.ndarray[Any, Any]]
Arrays = Mapping[str, np.ndarray[Any, Any]]


class Collector(Protocol):
    """Takes in answers that nobody noises here, in the order in which they are added."""

    def add(self, answer: Arrays, weight: float) -> None:
        """One client's answer."""

    def result(self) -> State | None:
        """All answers as one; None when there was none that counts."""


class ServerStep(Protocol):
    """From the model and a round's combined answer to the next model.

    Attributes:
        is_shared: whether all clients have one model; else each has a part of its own.
    """

    is_shared: bool

    def part(self, model: Arrays, name: str) -> Arrays:
        """What of the model a client is sent."""

    def whole(self, answer: Arrays, name: str) -> Arrays:
        """A client's answer to its part, under the names that the whole model has."""

    def answer_like(self, model: Arrays) -> Arrays:
        """The names, shapes and types that an answer to this model must have."""

    def collector(self, model: Arrays) -> Collector:
        """An empty one, for answers to this model."""

    def step(self, model: Arrays, combined: Arrays) -> State:
        """The next model; `combined` may be noised."""

    def moments(self) -> State:
        """What is kept between rounds besides the model."""

    def restore(self, moments: Arrays) -> None:
        """Continue from what `moments` gave."""


class SharedModel:
    """All clients have one model, and answer to all of it."""

    is_shared = True

    def part(self, model: Arrays, name: str) -> Arrays:
        """The model."""
        return model

    def whole(self, answer: Arrays, name: str) -> Arrays:
        """The answer."""
        return answer


class GradientStep(SharedModel):
    """The step of SGD that clients leave to the server, then the server's own step with it.

    `combined` is the noised mean of gradients; all that follows is post-processing.

    Args:
        inner: the server's step with an average of updates.
        lr: of the clients' SGD.
        weight_decay: likewise.
        trained: the weights that move, each with the name of its gradient.
    """

    def __init__(
        self, inner: ServerStep, *, lr: float, weight_decay: float, trained: Mapping[str, str]
    ) -> None:
        self.inner, self.lr, self.weight_decay, self.trained = inner, lr, weight_decay, trained
        self.answer_like, self.collector = inner.answer_like, inner.collector
        self.moments, self.restore = inner.moments, inner.restore

    def step(self, model: Arrays, combined: Arrays) -> State:
        """The next model."""
        update = {}
        for name, value in model.items():
            update[name] = np.zeros(value.shape)
            if name in self.trained:
                gradient = combined[self.trained[name]].astype(np.float64)
                update[name] = -self.lr * (gradient + self.weight_decay * value)
        return self.inner.step(model, update)


class WeightedMean:
    """The weighted mean of answers, summed in float64."""

    BLOCK = 32_768  # values at a time, so that the float64 products stay in the cache

    def __init__(self, like: Arrays) -> None:
        self.total = {name: np.zeros(value.size) for name, value in like.items()}
        self.shapes = {name: value.shape for name, value in like.items()}
        self.weight = 0.0
        self._product = np.empty(self.BLOCK)

    def add(self, answer: Arrays, weight: float) -> None:
        """Add one client's answer."""
        for name, total in self.total.items():
            flat = answer[name].reshape(-1)
            for start in range(0, flat.size, self.BLOCK):
                part = flat[start : start + self.BLOCK]
                product = self._product[: part.size]
                np.multiply(part, weight, out=product, dtype=np.float64)
                total[start : start + self.BLOCK] += product
        self.weight += weight

    def result(self) -> State | None:
        """The mean; None without weight."""
        if self.weight <= 0.0:
            return None
        return {
            name: (total / self.weight).reshape(self.shapes[name])
            for name, total in self.total.items()
        }
