"""ClientApps and networks that misbehave in one way each."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from dp_fedmed.federation import arrays as model_arrays

Answer = Callable[[int, dict[str, np.ndarray]], RecordDict]


def good(update: dict[str, np.ndarray], examples: float = 1.0, loss: float = 0.5) -> RecordDict:
    metrics = MetricRecord({"num-examples": examples, "train_loss": loss})
    return RecordDict({"arrays": model_arrays.to_record(update), "metrics": metrics})


def app_of(answer: Answer) -> ClientApp:
    """A ClientApp whose training answers with `answer(partition, model)`."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = model_arrays.from_record(message.content.array_records["arrays"])
        return Message(answer(int(context.node_config["partition-id"]), model), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        number = int(context.node_config["partition-id"])
        metrics = MetricRecord({"accuracy": number / 10, "num-examples": number})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def add_partition_number(number: int, model: dict[str, np.ndarray]) -> RecordDict:
    return good({name: np.full_like(value, number) for name, value in model.items()})


def dies(number: int, model: dict[str, np.ndarray]) -> RecordDict:
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return add_partition_number(number, model)


def raises(number: int, model: dict[str, np.ndarray]) -> RecordDict:
    if number == 1:
        raise FileNotFoundError("/home/jane/patients.csv")
    return add_partition_number(number, model)


def sleeps(number: int, model: dict[str, np.ndarray]) -> RecordDict:
    if number == 1:
        time.sleep(60)
    return add_partition_number(number, model)


def slow_first(number: int, model: dict[str, np.ndarray]) -> RecordDict:
    time.sleep(0.3 if number == 0 else 0.0)
    return add_partition_number(number, model)


def remembering_app() -> ClientApp:
    """Counts its own rounds in `context.state`."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        seen = int(context.state.config_records.get("seen", ConfigRecord({"n": 0}))["n"]) + 1
        context.state["seen"] = ConfigRecord({"n": seen})
        return Message(RecordDict({"metrics": MetricRecord({"seen": seen})}), reply_to=message)

    return app


MODEL = {"w": np.zeros((3, 2), np.float32), "b": np.zeros(2, np.float32)}


def model_record() -> ArrayRecord:
    return model_arrays.to_record(MODEL)


class RemembersItsInputs(nn.Module):
    """Keeps the mean of the last batch in a buffer."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(input_shape[0], num_classes)
        self.register_buffer("mean", torch.zeros(input_shape[0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean.copy_(x.detach().mean(0))
        return self.linear(x)
