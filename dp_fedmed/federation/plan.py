"""What a run will spend, as values: each client's part, and the federation's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from dp_fedmed.federation.charges import OLD_RELATION
from dp_fedmed.privacy import History, PrivacyAccountant, PrivacyEvent
from dp_fedmed.privacy.accounting.events import Adjacency, record_event
from dp_fedmed.privacy.accounting.history import Method


@dataclass(frozen=True, kw_only=True)
class ClientPlan:
    """One client's record-level plan."""

    records: int
    sample_rate: float
    steps: int
    participations: int | None
    noise_multiplier: float
    is_private: bool = True
    adjacency: Adjacency = "zero_out"

    @property
    def round_event(self) -> PrivacyEvent:
        """What one round costs a record of this client."""
        return record_event(
            noise_multiplier=self.noise_multiplier,
            sample_rate=self.sample_rate,
            steps=self.steps,
            adjacency=self.adjacency,
            is_private=self.is_private,
        )


@dataclass(frozen=True, kw_only=True)
class PrivacyPlan:
    """A run's plan: record level by client, and client level."""

    delta_sample: float | None
    delta_user: float | None
    clients: Mapping[str, ClientPlan]
    user_event: PrivacyEvent | None

    def to_json(self) -> dict[str, Any]:
        """As it stands in the ledger; clients with one plan share an entry."""
        shared: dict[ClientPlan, list[str]] = {}
        for name, plan in self.clients.items():
            shared.setdefault(plan, []).append(name)
        return {
            "delta_sample": self.delta_sample,
            "delta_user": self.delta_user,
            "user_event": None if self.user_event is None else self.user_event.to_json(),
            "clients": [{**asdict(plan), "names": names} for plan, names in shared.items()],
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> PrivacyPlan:
        """Read a plan back."""
        clients = {}
        for entry in content["clients"]:
            settings = {key: value for key, value in entry.items() if key != "names"}
            if settings.get("adjacency") == OLD_RELATION:
                settings["adjacency"] = "zero_out"
            clients.update(dict.fromkeys(entry["names"], ClientPlan(**settings)))
        event = content["user_event"]
        return cls(
            delta_sample=content["delta_sample"],
            delta_user=content["delta_user"],
            clients=dict(sorted(clients.items())),
            user_event=None if event is None else PrivacyEvent.from_json(event),
        )

    def accountant(
        self, *, method: Method, sample_epsilon: float | None, user_epsilon: float | None
    ) -> PrivacyAccountant:
        """An accountant with this plan's δ and these budgets."""
        return PrivacyAccountant(
            self.delta_sample or self.delta_user or 1e-5,
            target_epsilon=sample_epsilon if self.delta_sample is not None else None,
            user_target_delta=self.delta_user,
            user_target_epsilon=user_epsilon if self.delta_user is not None else None,
            method=method,
        )


@dataclass(frozen=True)
class Spent:
    """What earlier phases of a run have spent: by client for records, and for clients."""

    rounds: int = 0
    clients: Mapping[str, History] = field(default_factory=dict)
    participations: Mapping[str, int] = field(default_factory=dict)
    federation: History = field(default_factory=History)
