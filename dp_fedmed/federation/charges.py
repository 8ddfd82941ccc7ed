"""What a round is charged with, and the journal that writes it down before anything is sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from dp_fedmed.privacy import PrivacyEvent
from dp_fedmed.privacy.ledger import Record

State = dict[str, np.ndarray[Any, Any]]
RoundKey = tuple[int, int, str]
#: What ledgers called the relation of records before 0.2. It was zero-out in all but name, since q
#: and the denominator came from public sizes, and it is accounted alike: so the two compose.
OLD_RELATION = "add_remove"


@dataclass(frozen=True, kw_only=True)
class Charge:
    """What a round may cost, written down before it is dispatched.

    Attributes:
        phase: the stretch of the run in which settings and plan stay the same.
        server_round: the round.
        digest: of the model sent and the settings in force; the same round done again has the same.
        cohort: who takes part.
        federation: the client-level event.
        clients: the record-level event of each client of the cohort.
        again: something in the round differed from the last time, so that it is paid for twice.
        number: of its record in the ledger.
    """

    phase: int
    server_round: int
    digest: str
    cohort: list[str]
    federation: PrivacyEvent | None = None
    clients: Mapping[str, PrivacyEvent] = field(default_factory=dict)
    again: bool = False
    number: int = -1

    @property
    def key(self) -> RoundKey:
        """What makes two charges the same round."""
        return self.phase, self.server_round, self.digest

    def body(self) -> dict[str, Any]:
        """As it stands in the ledger."""
        return {
            "phase": self.phase,
            "round": self.server_round,
            "digest": self.digest,
            "cohort": list(self.cohort),
            "federation": None if self.federation is None else self.federation.to_json(),
            "clients": to_entries(self.clients),
            "again": self.again,
        }

    @classmethod
    def from_record(cls, record: Record) -> Charge:
        """Read a CHARGE record back."""
        body = record.body
        federation = body["federation"]
        return cls(
            phase=body["phase"],
            server_round=body["round"],
            digest=body["digest"],
            cohort=list(body["cohort"]),
            federation=None if federation is None else PrivacyEvent.from_json(federation),
            clients=from_entries(body["clients"]),
            again=body["again"],
            number=record.number,
        )


@dataclass(frozen=True)
class StoredRelease:
    """A noised average, and the mechanism's state that holds after it."""

    average: State
    state: Mapping[str, float]


class RoundJournal(Protocol):
    """Writes a round down: charged before it is sent, released while it is made.

    Attributes:
        phase: the phase that new charges belong to.
        charges: all charges so far.
        current: the charge of the round that is open.
        worst_case: what every client counts with in public, by phase, where cohorts are secret.
    """

    phase: int
    charges: list[Charge]
    current: Charge | None
    worst_case: dict[int, Mapping[str, PrivacyEvent]]

    @property
    def length(self) -> int:
        """Records written so far; it only grows."""

    def find(self, server_round: int, digest: str) -> Charge | None:
        """The charge of this very round, if it was made before: it need not be paid for again."""

    def charge(self, charge: Charge) -> Charge:
        """Write a charge down, on disk before this returns."""

    def client_charges(self, name: str) -> int:
        """How often the current round was charged to a client's records."""

    def stored(self) -> StoredRelease | None:
        """The release of the current round, if it was made before: it is never made again."""

    def release(self, inputs: str, average: State, state: Mapping[str, float]) -> None:
        """Make a noised average durable before anybody uses it."""


def to_entries(clients: Mapping[str, PrivacyEvent]) -> list[dict[str, Any]]:
    """Events by client, for a ledger.

    >>> event = PrivacyEvent.full(unit="record", noise_multiplier=1.0)
    >>> [entry["names"] for entry in to_entries({"a": event, "b": event})]
    [['a', 'b']]
    """
    shared: dict[PrivacyEvent, list[str]] = {}
    for name, event in clients.items():
        shared.setdefault(event, []).append(name)
    return [{"event": event.to_json(), "names": names} for event, names in shared.items()]


def from_entries(entries: Iterable[Mapping[str, Any]]) -> dict[str, PrivacyEvent]:
    """What `to_entries` wrote."""
    clients: dict[str, PrivacyEvent] = {}
    for entry in entries:
        event = PrivacyEvent.from_json(entry["event"])
        if event.adjacency == OLD_RELATION:
            event = replace(event, adjacency="zero_out")
        clients.update(dict.fromkeys(entry["names"], event))
    return clients
