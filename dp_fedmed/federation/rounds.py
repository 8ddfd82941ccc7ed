"""What a round is set up with, what happened in it, and who takes part in its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from flwr.app import ArrayRecord

from dp_fedmed.federation.arrays import State
from dp_fedmed.federation.privacy_guard import PrivacyGuard
from dp_fedmed.privacy.streams.rounds import RoundStreams


@dataclass(frozen=True, kw_only=True)
class RoundSettings:
    """How rounds are run.

    Attributes:
        num_rounds: of the whole run.
        weight_by_examples: whether an answer counts by its client's records where nobody noises it.
        min_clients: a round with fewer usable replies ends the run; None for at least one.
        evaluate_every: rounds between evaluations at the server; 0 for none.
        client_evaluate_every: rounds between evaluations at clients; 0 for none.
        client_evaluate_max: clients that evaluate in such a round.
    """

    num_rounds: int
    weight_by_examples: bool = True
    min_clients: int | None = None
    evaluate_every: int = 1
    client_evaluate_every: int = 0
    client_evaluate_max: int = 100


@dataclass
class RoundRecord:
    """What happened in one round."""

    server_round: int
    cohort: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    train_loss: float | None = None
    server_metrics: dict[str, float] = field(default_factory=dict)
    client_metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    seconds: float = 0.0
    epsilons: dict[str, float] = field(default_factory=dict)


class RoundLedger(Protocol):
    """What a private round is paid with, and where its secret streams come from."""

    guard: PrivacyGuard

    def streams(self, server_round: int, model: State) -> RoundStreams:
        """The server's streams of a round."""


class RoundObserver:
    """Takes part in the end of every round, and of round 0; this one neither looks nor keeps."""

    def evaluate(self, server_round: int, arrays: ArrayRecord) -> Mapping[str, float] | None:
        """Metrics of a round's model at the server, in rounds that evaluate there."""
        return None

    def end_round(self, record: RoundRecord) -> None:
        """Commit and report a round; `DPStrategy.arrays` is its model."""
