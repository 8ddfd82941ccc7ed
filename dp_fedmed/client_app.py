"""The Flower ClientApp: one site. It tells its name, trains, evaluates; it keeps its records."""

from __future__ import annotations

import functools
import json
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from dp_fedmed.config import Config, from_run_config
from dp_fedmed.data import Records, load_data, partition, split_client
from dp_fedmed.federation import arrays as model_arrays
from dp_fedmed.federation.failures import ClientFailed, describe_failure
from dp_fedmed.federation.nodes import client_name
from dp_fedmed.models import build_model
from dp_fedmed.randomness import stream
from dp_fedmed.tasks import make_task
from dp_fedmed.tasks.local_training import make_optimizer, pick_device, train_locally

logger = logging.getLogger(__name__)


class ClientRuntime:
    """What a process needs to act as any of the clients: the data, one network, the task."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.task = make_task(config.task)
        self._process: int | None = None

    @functools.cached_property
    def device(self) -> torch.device:
        """Where this process computes."""
        return pick_device(self.config.training.device)

    @functools.cached_property
    def model(self) -> torch.nn.Module:
        """The one network of this process; every message brings its own weights."""
        data = load_data(self.config.data, seed=self.config.seed)
        model = build_model(
            self.config.model,
            input_shape=data.input_shape,
            num_classes=data.num_classes,
            seed=self.config.seed,
        )
        return model.to(self.device)

    @functools.cached_property
    def state(self) -> model_arrays.ModelState:
        """The network's weights."""
        return model_arrays.ModelState(self.model)

    def preload(self, num_clients: int) -> None:
        """Load what every client needs, so that processes forked from this one share it."""
        data = load_data(self.config.data, seed=self.config.seed)
        partition(data, self.config.data.partition, num_clients=num_clients, seed=self.config.seed)
        make_optimizer(self.model, self.config.training)  # the first one makes torch import more

    def records(self, node_config: Mapping[str, Any]) -> tuple[Records, Records]:
        """(training, validation) records of the client that this node-config names.

        In a simulation that is a partition of the configured data; a deployed node names its own
        with `data-path` in its node-config and uses all of it.
        """
        config = self.config
        if "partition-id" in node_config and "data-path" not in node_config:
            number, count = int(node_config["partition-id"]), int(node_config["num-partitions"])
            data = load_data(config.data, seed=config.seed)
            parts = partition(data, config.data.partition, num_clients=count, seed=config.seed)
            train, val = split_client(
                parts[number],
                val_fraction=config.data.client_val_fraction,
                seed=config.seed,
                client=number,
            )
            return data.train.subset(train), data.train.subset(val)
        own = config.data
        if "data-path" in node_config:
            from dataclasses import replace

            own = replace(own, path=str(node_config["data-path"]))
        data = load_data(own, seed=config.seed)
        return data.train, data.val

    def train(self, message: Message, context: Context) -> RecordDict:
        """Train on this client's records; the answer is the change of the model."""
        self._enter()
        name = client_name(context.node_config)
        server_round = int(message.content.config_records["config"]["round"])  # type: ignore[arg-type]
        received = model_arrays.from_record(message.content.array_records["arrays"])
        self.state.load(received)
        records, _ = self.records(context.node_config)
        result = train_locally(
            self.model,
            records,
            task=self.task,
            config=self.config.training,
            rng=stream(self.config.seed, "train", name, server_round),
            device=self.device,
        )
        trained = self.state.read()
        update = {key: np.subtract(trained[key], received[key]) for key in received}
        metrics = MetricRecord(
            {"num-examples": len(records), "train_loss": result.loss, "steps": result.steps}
        )
        return RecordDict({"arrays": model_arrays.to_record(update), "metrics": metrics})

    def evaluate(self, message: Message, context: Context) -> RecordDict:
        """Evaluate the model on this client's validation records."""
        self._enter()
        received = model_arrays.from_record(message.content.array_records["arrays"])
        self.state.load(received)
        _, records = self.records(context.node_config)
        metrics = self.task.evaluate(self.model, records, self.device)
        return RecordDict({"metrics": MetricRecord({**metrics, "num-examples": len(records)})})

    def _enter(self) -> None:
        """Once per process: the thread count on which every engine's results depend."""
        if self._process != os.getpid():
            torch.set_num_threads(self.config.training.threads)
            self._process = os.getpid()


def build_client_app(
    config: Config | None = None, runtime: ClientRuntime | None = None
) -> ClientApp:
    """The ClientApp for a configuration; without one, for Flower's run-config.

    Args:
        config: the run's configuration, when the caller has it.
        runtime: a runtime to use in this process and in those forked from it.
    """
    app = ClientApp()
    made: dict[str, ClientRuntime] = {}

    def runtime_for(context: Context) -> ClientRuntime:
        if runtime is not None:
            return runtime
        key = "" if config is not None else json.dumps(dict(context.run_config), sort_keys=True)
        if key not in made:
            made.clear()  # one federation at a time: a changed run-config frees the old data
            made[key] = ClientRuntime(config or from_run_config(context.run_config))
        return made[key]

    @app.query("name")
    def name(message: Message, context: Context) -> Message:
        told: dict[str, Any] = {"name": client_name(context.node_config)}
        if "num-partitions" in context.node_config:
            told["num-partitions"] = int(context.node_config["num-partitions"])
        return Message(RecordDict({"client": ConfigRecord(told)}), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return _guarded("train", lambda: runtime_for(context).train(message, context), message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return _guarded(
            "evaluate", lambda: runtime_for(context).evaluate(message, context), message
        )

    return app


def _guarded(verb: str, work: Callable[[], RecordDict], message: Message) -> Message:
    """Run a client's work; what went wrong stays in the client's own log."""
    try:
        return Message(work(), reply_to=message)
    except Exception as error:
        logger.exception("this client could not %s", verb)
        raise ClientFailed(describe_failure(error)) from None


app = build_client_app()
