"""A deployment in one process: each node is a site with a node-config of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from dp_fedmed.client_app import build_client_app
from dp_fedmed.config import Config, DataConfig, compose
from dp_fedmed.data import DataSet, Records
from dp_fedmed.federation import flower_compat

FIRST, OFFLINE_CODE = 10**6, 5  # Flower's NODE_UNAVAILABLE
WORDS = (
    *(f"data.name={__name__}.load_vectors", "allow_code=[tests]", "training.local_steps=1"),
    *("model._target_=dp_fedmed.models.MLP", "model.args.hidden=[4]", "federation.num_rounds=2"),
    *("privacy.sample.grad_mode=hooks", "privacy.sample.noise_multiplier=1.0"),
    *("privacy.sample.target_epsilon=null", "federation.client_evaluate_every=0"),
)


def load_vectors(config: DataConfig, seed: int) -> DataSet:
    """Four features and two classes; a path of `other.class` has one record of a third."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(60, 4)).astype(np.float32), np.arange(60) % 2
    part, classes = Records(x[:20], y[:20]), 2
    if config.path == "other.class":
        y, classes = np.where(np.arange(60) == 7, 2, y), 3
    names = ("no", "yes", "other")[:classes]
    return DataSet(Records(x, y), part, part, num_classes=classes, class_names=names)


def settings(folder: Path, *words: str, sites: int = 2) -> Config:
    return compose([*WORDS, f"federation.num_clients={sites}", f"run_dir={folder}/run", *words])


class Sites(Grid):
    """Flower's Grid with sites behind it; one in `offline` is answered for by the SuperLink."""

    def __init__(self, config: Config, nodes: dict[str, dict[str, Any]]) -> None:
        flower_compat.set_identity(1)
        self.offline: set[str] = set()
        self.nodes = {
            FIRST + i: {"client-id": name, "allow-code": "tests", **own}
            for i, (name, own) in enumerate(nodes.items())
        }
        self.apps: dict[int, ClientApp] = {n: build_client_app(config) for n in self.nodes}
        self._replies: dict[str, Message] = {}
        self._ids = itertools.count(1)
        self._run = Run.create_empty(1)

    def set_run(self, run: Run) -> None:
        self._run = run

    @property
    def run(self) -> Run:
        return self._run

    def create_message(self, *arguments: Any, **named: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Any:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            flower_compat.set_message_id(message, str(next(self._ids)))
            ids.append(message.metadata.message_id)
            self._replies[ids[-1]] = self._answer(message)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(i) for i in message_ids if i in self._replies]

    def _answer(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        if self.nodes[node]["client-id"] in self.offline:
            reply = Message(Error(OFFLINE_CODE, "Error: Node Unavailable"), reply_to=message)
            reply.metadata.__dict__["_src_node_id"] = flower_compat.SERVER_NODE_ID
            return reply
        context = Context(
            run_id=1, node_id=node, node_config=self.nodes[node], state=RecordDict(), run_config={}
        )
        return self.apps[node](message, context)
