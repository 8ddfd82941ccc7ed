"""The two halves of what is learnt: `Learner` at the server, `LocalWork` at a client.

Whatever is learnt, the apps around them send, charge, noise, commit and report alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord

from dp_fedmed.config import Config, TaskKind, Topology
from dp_fedmed.data import DataSet, Records
from dp_fedmed.federation.sampling import Sampler
from dp_fedmed.learning.server_step import ServerStep
from dp_fedmed.planning.plan import PrivacyPlan
from dp_fedmed.privacy.mechanisms.client_level import ClientLevelMechanism
from dp_fedmed.run.directory import RunDirectory
from dp_fedmed.site.keys import RoundSecrets
from dp_fedmed.site.ledger import RecordPlan

State = dict[str, np.ndarray[Any, Any]]


class Learner(Protocol):
    """The server's half."""

    def initial(self) -> State:
        """The model before the first round, in the order that digests depend on."""

    def told(self) -> dict[str, Any]:
        """What every client must know besides the model."""

    def settled(self, config: Config) -> Config:
        """The configuration with open choices made, before records are protected with it.

        Raises:
            ConfigError: if what it says cannot be protected.
        """

    def mechanism(self, plan: PrivacyPlan, sampler: Sampler) -> ClientLevelMechanism | None:
        """What the server clips and noises, if anything."""

    def step(self, plan: PrivacyPlan | None, sampler: Sampler) -> ServerStep:
        """What the server makes of a round's answers."""

    def advice(self, plan: PrivacyPlan, sampler: Sampler) -> str | None:
        """What the user should know before anything is spent, from public numbers."""

    def evaluate(self, state: State, split: str) -> dict[str, float]:
        """Metrics on the server's `val` or `test` records; what is undefined is left out."""

    def finish(self, state: State, directory: RunDirectory) -> None:
        """Write what belongs to the final model besides itself."""


@dataclass(frozen=True, kw_only=True)
class LocalRound:
    """One client's part in a round.

    Attributes:
        name: the client's.
        server_round: the round.
        received: the model.
        records: the client's own.
        plan: what its records are charged with; None where they are not protected.
        secrets: its streams, for the same.
    """

    name: str
    server_round: int
    received: State
    records: Records
    plan: RecordPlan | None = None
    secrets: RoundSecrets | None = None


class LocalWork(Protocol):
    """A client's half: made once per process, told the model with every message."""

    def build(self, input_shape: Sequence[int], num_classes: int) -> None:
        """Make what every round needs; once per process, before it forks where it does."""

    def accept(self, sent: ArrayRecord) -> State:
        """The model that a server sent, if it can be one.

        Raises:
            ArrayError: naming the array that cannot.
        """

    def agree(self, told: ConfigRecord) -> None:
        """Refuse a server that counts on another computation than this client's.

        Raises:
            ConfigError: naming the setting.
        """

    def plan(self, told: ConfigRecord, records: int) -> RecordPlan:
        """What the server asks for, if that is what this client's own settings imply.

        Raises:
            ConfigError: if it is not.
        """

    def vet(self, plan: RecordPlan, records: Records) -> None:
        """What a site of its own tries for itself before it pays: it takes nobody's word for it.

        Raises:
            ConfigError: if the plan would not protect its records.
        """

    def train(self, work: LocalRound) -> tuple[State, dict[str, float]]:
        """The answer, and metrics that may go with it."""

    def evaluate(self, received: State, records: Records) -> dict[str, float]:
        """Metrics of a model on this client's records."""


def make_learner(
    config: Config, data: DataSet, clients: Mapping[str, int] = MappingProxyType({})
) -> Learner:
    """The server's half of what the configuration names.

    Args:
        config: the run's.
        data: the server's own.
        clients: each one's number of records where `Config.asks_for_sizes`, else 0.
    """
    num_records = sum(clients.values())
    if config.federation.topology is Topology.local_only:
        from dp_fedmed.learning.local_only import LocalOnlyLearner

        each = num_records // max(1, len(clients))
        return LocalOnlyLearner(_one_learner(config, data, each), list(clients), config)
    return _one_learner(config, data, num_records)


def _one_learner(config: Config, data: DataSet, num_records: int) -> Learner:
    if config.task.kind is TaskKind.anomaly:
        from dp_fedmed.learning.anomaly.learner import AnomalyLearner

        return AnomalyLearner(config, data, num_records)
    from dp_fedmed.learning.networks.learner import GradientLearner

    return GradientLearner(config, data)


def make_work(config: Config) -> LocalWork:
    """A client's half of what the configuration names."""
    if config.task.kind is TaskKind.anomaly:
        from dp_fedmed.learning.anomaly.learner import AnomalyWork

        return AnomalyWork(config)
    from dp_fedmed.learning.networks.learner import GradientWork

    return GradientWork(config)
