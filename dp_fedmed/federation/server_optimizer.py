"""What the server does with the averaged update: FedAvg, FedAvgM, FedAdam (Reddi et al. 2021).

Flower has the same rules inside strategies that also average; here they are pure steps, so that
clipping and noise can come first and the rest is post-processing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dp_fedmed.learning.server_step import Arrays, SharedModel, State, WeightedMean

Array = np.ndarray[Any, Any]


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
        """The next model: `combined` is the average of (client − model)."""
        direction = SERVER_OPTIMIZERS[self.name]
        return {
            name: (
                value + self.lr * direction(self, name, combined[name].astype(np.float64))
            ).astype(value.dtype)
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


def fedavg(server: ServerOptimizer, name: str, update: Array) -> Array:
    """The averaged update itself (McMahan et al. 2017)."""
    return update


def fedavgm(server: ServerOptimizer, name: str, update: Array) -> Array:
    """With momentum (Hsu et al. 2019)."""
    server.first[name] = server.beta1 * server.first.get(name, 0.0) + update
    return server.first[name]


def fedadam(server: ServerOptimizer, name: str, update: Array) -> Array:
    """Adam without bias correction (Reddi et al. 2021)."""
    beta1, beta2 = server.beta1, server.beta2
    server.first[name] = beta1 * server.first.get(name, 0.0) + (1 - beta1) * update
    before = server.second.get(name, server.tau**2)
    server.second[name] = beta2 * before + (1 - beta2) * update**2
    return server.first[name] / (np.sqrt(server.second[name]) + server.tau)


#: Which way to go with an averaged update, by name; adding one is a function and a line.
SERVER_OPTIMIZERS: dict[str, Callable[[ServerOptimizer, str, Array], Array]] = {
    "fedavg": fedavg,
    "fedavgm": fedavgm,
    "fedadam": fedadam,
}
