"""The two halves of what is learnt: `Learner` at the server, `LocalWork` at a client.

Whatever is learnt, the apps around them send, charge, noise, commit and report alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from dp_fedmed.data import Records
from dp_fedmed.privacy.mechanisms.base import RecordMechanism
from dp_fedmed.privacy.streams.rounds import RoundStreams

State = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """A few test images with what the final model finds in them.

    Attributes:
        kind: which sheet shows them.
        images: (n, channels, height, width).
        truth: masks, (n, height, width).
        found: predicted masks, or pixel scores of an anomaly task.
        titles: one per image.
    """

    kind: Literal["segmentation", "anomaly"]
    images: np.ndarray[Any, Any]
    truth: np.ndarray[Any, Any]
    found: np.ndarray[Any, Any]
    titles: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class ClientModel:
    """One client's own final model, where each has one."""

    model: State
    val: Mapping[str, float]
    test: Mapping[str, float]
    evaluation: Evaluation


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What belongs to a final model besides itself.

    Attributes:
        content: for `evaluation.json`, if there is anything to write.
        pictures: for `pictures.png`, likewise.
        clients: the models of a run in which each client has its own.
    """

    content: Mapping[str, Any] | None = None
    pictures: Pictures | None = None
    clients: Mapping[str, ClientModel] = field(default_factory=dict)


class Learner(Protocol):
    """The server's half."""

    def initial(self) -> State:
        """The model before the first round, in the order that digests depend on."""

    def order(self) -> dict[str, Any]:
        """What every client must know besides the model."""

    def settle(self, grad_mode: str) -> str:
        """How gradients of single records will be computed, before records are protected so.

        Raises:
            ConfigError: if records cannot be protected.
        """

    def evaluate(self, state: State, split: str) -> dict[str, float]:
        """Metrics on the server's `val` or `test` records; what is undefined is left out."""

    def finish(self, state: State) -> Evaluation:
        """What belongs to the final model besides itself."""


@dataclass(frozen=True, kw_only=True)
class LocalRound:
    """One client's part in a round.

    Attributes:
        name: the client's.
        server_round: the round.
        received: the model.
        records: the client's own.
        mechanism: protects its records; None where they are not protected.
        streams: its secret streams, for the same.
    """

    name: str
    server_round: int
    received: State
    records: Records
    mechanism: RecordMechanism | None = None
    streams: RoundStreams | None = None


class LocalWork(Protocol):
    """A client's half: made once per process, given the model with every message."""

    def build(self, input_shape: Sequence[int], num_classes: int) -> None:
        """Make what every round needs; once per process, before it forks where it does."""

    def expected(self) -> State | None:
        """Arrays like those of the model that a server may send; None for any finite ones."""

    def agree(self, order: Mapping[str, Any]) -> None:
        """Refuse a server that counts on another computation than this client's.

        Raises:
            ConfigError: naming the setting.
        """

    def vet(self, mechanism: RecordMechanism, records: Records) -> None:
        """What a site of its own tries for itself before it pays: it takes nobody's word for it.

        Raises:
            ConfigError: if the mechanism would not protect its records.
        """

    def train(self, work: LocalRound) -> tuple[State, dict[str, float]]:
        """The answer, and metrics that may go with it."""

    def evaluate(self, received: State, records: Records) -> dict[str, float]:
        """Metrics of a model on this client's records."""
