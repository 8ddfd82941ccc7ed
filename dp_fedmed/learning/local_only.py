"""Each client alone: one model per client, side by side in one state, and nothing is averaged.

The rounds, charges, checkpoints and reports of a run stay the same. What a client is sent, and
what it answers, is about its own model only.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dp_fedmed.learning.base import ClientModel, Evaluation, Learner, State
from dp_fedmed.learning.server_step import Arrays, Collector, ServerStep


def part_of(state: Arrays, name: str) -> State:
    """One client's own part of a state that holds everybody's.

    >>> part_of({"a/w": np.zeros(1), "b/w": np.ones(1)}, "b")
    {'w': array([1.])}
    """
    prefix = f"{name}/"
    return {key[len(prefix) :]: value for key, value in state.items() if key.startswith(prefix)}


def in_place_of(part: Arrays, name: str) -> State:
    """A client's part under the names that it has among everybody's."""
    return {f"{name}/{key}": value for key, value in part.items()}


class LocalOnlyStep:
    """One server's step per client, each on its own model."""

    is_shared = False

    def __init__(self, steps: Mapping[str, ServerStep]) -> None:
        self.steps = dict(steps)

    def part(self, model: Arrays, name: str) -> Arrays:
        """A client's own model."""
        return part_of(model, name)

    def whole(self, answer: Arrays, name: str) -> Arrays:
        """Its answer among everybody's."""
        return in_place_of(answer, name)

    def answer_like(self, model: Arrays) -> Arrays:
        """As the step of any client says: all are of one kind."""
        return next(iter(self.steps.values())).answer_like(model)

    def collector(self, model: Arrays) -> Collector:
        """Answers stay apart."""
        own = {name: step.collector(part_of(model, name)) for name, step in self.steps.items()}
        return _Apart(own)

    def step(self, model: Arrays, combined: Arrays) -> State:
        """Every client that has answered moves; the others stay where they are."""
        after = dict(model)
        for name, step in self.steps.items():
            own = part_of(combined, name)
            if own:
                after |= in_place_of(step.step(part_of(model, name), own), name)
        return after

    def moments(self) -> State:
        """What every client's step keeps."""
        kept: State = {}
        for name, step in self.steps.items():
            kept |= in_place_of(step.moments(), name)
        return kept

    def restore(self, moments: Arrays) -> None:
        """Continue from what `moments` gave."""
        for name, step in self.steps.items():
            step.restore(part_of(moments, name))


class _Apart:
    """Takes each client's answer in on its own."""

    def __init__(self, collectors: Mapping[str, Collector]) -> None:
        self.collectors = collectors

    def add(self, answer: Arrays, weight: float) -> None:
        """One client's answer, by the name that its arrays begin with."""
        name = next(iter(answer)).split("/", 1)[0]
        self.collectors[name].add(part_of(answer, name), weight)

    def result(self) -> State | None:
        """Everybody's answers; None when there was none that counts."""
        combined: State = {}
        for name, collector in self.collectors.items():
            own = collector.result()
            if own is not None:
                combined |= in_place_of(own, name)
        return combined or None


class LocalOnlyLearner:
    """A learner whose state is one model for each client; each learns what `inner` does.

    The spread of `metric` over the clients is reported; `sign` is −1 where less of it is better.
    """

    def __init__(
        self, inner: Learner, names: Sequence[str], *, metric: str, sign: float = 1.0
    ) -> None:
        self.inner, self.names = inner, sorted(names)
        self.metric, self.sign = metric, sign
        self._tested: dict[str, dict[str, float]] = {}

    def initial(self) -> State:
        """The same model for everybody."""
        first = self.inner.initial()
        state: State = {}
        for name in self.names:
            state |= in_place_of({key: np.copy(value) for key, value in first.items()}, name)
        return state

    def order(self) -> dict[str, Any]:
        """What the inner learner orders."""
        return self.inner.order()

    def settle(self, grad_mode: str) -> str:
        """What the inner learner settles."""
        return self.inner.settle(grad_mode)

    def evaluate(self, state: State, split: str) -> dict[str, float]:
        """Means over the clients' models; of the task's metric also sd, worst and best."""
        by_client = {name: self.inner.evaluate(part_of(state, name), split) for name in self.names}
        if split == "test":
            self._tested = by_client
        return over_clients(list(by_client.values()), self.metric, sign=self.sign)

    def finish(self, state: State) -> Evaluation:
        """Each client's own model, and what it is worth."""
        clients = {}
        for name in self.names:
            part = part_of(state, name)
            clients[name] = ClientModel(
                evaluation=self.inner.finish(part),
                model=part,
                val=_finite(self.inner.evaluate(part, "val")),
                test=_finite(self._tested.get(name, {})),
            )
        return Evaluation(clients=clients)


def over_clients(
    metrics: Sequence[Mapping[str, float]], main: str, *, sign: float = 1.0
) -> dict[str, float]:
    """Means of finite values; of the main metric also its spread over the clients.

    >>> over_clients([{"accuracy": 0.5}, {"accuracy": 1.0}], "accuracy")["accuracy/clients_worst"]
    0.5
    """
    found: dict[str, float] = {}
    for key in dict.fromkeys(key for own in metrics for key in own):
        values = [own[key] for own in metrics if key in own and math.isfinite(own[key])]
        if not values:
            continue
        found[key] = statistics.fmean(values)
        if key == main:
            ranked = sorted(values, key=lambda value: sign * value)
            found[f"{key}/clients_sd"] = statistics.stdev(values) if len(values) > 1 else 0.0
            found[f"{key}/clients_worst"] = ranked[0]
            found[f"{key}/clients_best"] = ranked[-1]
    return found


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    return {key: value for key, value in metrics.items() if math.isfinite(value)}
