"""Events by client as JSON: clients that share an event share an entry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from dp_fedmed.privacy import PrivacyEvent

#: What ledgers called the relation of records before 0.2. It was zero-out in all but name, since q
#: and the denominator came from public sizes, and it is accounted alike: so the two compose.
OLD_RELATION = "add_remove"


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
