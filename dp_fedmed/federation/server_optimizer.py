"""What the server does with the averaged update: FedAvg, FedAvgM, FedAdam (Reddi et al. 2021).

Flower has the same rules inside strategies that also average; here they are pure steps, so that
clipping and noise can come first and the rest is post-processing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dp_fedmed.learning.server_step import Arrays, SharedModel, State, WeightedMean

SERVER_OPTIMIZERS = ("fedavg", "fedavgm", "fedadam")


class ServerOptimizer(SharedModel):
    """Turns averaged updates into the next global model; keeps float64 moments between rounds.

    Args:
        name: `fedavg`, `fedavgm` or `fedadam`.
        lr: server learning rate.
        momentum: of the first moment.
        beta2: of the second moment.
        tau: keeps FedAdam's denominator away from zero.
    """

    def __init__(
        self,
        name: str = "fedavg",
        *,
        lr: float = 1.0,
        momentum: float = 0.9,
        beta2: float = 0.99,
        tau: float = 1e-3,
    ) -> None:
        if name not in SERVER_OPTIMIZERS:
            raise ValueError(f"name={name!r} is not one of {', '.join(SERVER_OPTIMIZERS)}")
        self.name, self.lr = name, lr
        self.beta1, self.beta2, self.tau = momentum, beta2, tau
        self.first: State = {}
        self.second: State = {}

    def answer_like(self, model: Arrays) -> Arrays:
        """An update has the model's own names, shapes and types."""
        return model

    def collector(self, model: Arrays) -> WeightedMean:
        """Updates are averaged."""
        return WeightedMean(model)

    def step(self, model: Arrays, combined: Arrays) -> State:
        """The next model: `combined` is the average of (client − model), in float64."""
        return {
            name: (value + self.lr * self._direction(name, combined[name])).astype(value.dtype)
            for name, value in model.items()
        }

    def moments(self) -> State:
        """What it keeps between rounds, by `first/…` and `second/…`."""
        kept = {f"first/{name}": value for name, value in self.first.items()}
        return kept | {f"second/{name}": value for name, value in self.second.items()}

    def restore(self, moments: Arrays) -> None:
        """Continue from what `moments` gave."""
        self.first = {k[6:]: v for k, v in moments.items() if k.startswith("first/")}
        self.second = {k[7:]: v for k, v in moments.items() if k.startswith("second/")}

    def _direction(self, name: str, update: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        if self.name == "fedavg":
            return update
        if self.name == "fedavgm":
            self.first[name] = self.beta1 * self.first.get(name, 0.0) + update
            return self.first[name]
        self.first[name] = self.beta1 * self.first.get(name, 0.0) + (1 - self.beta1) * update
        start = self.tau**2
        self.second[name] = self.beta2 * self.second.get(name, start) + (1 - self.beta2) * update**2
        return self.first[name] / (np.sqrt(self.second[name]) + self.tau)
