"""Reading a saved accountant: everything or an error, never a smaller history.

Kept apart from the accountant because a parser of untrusted JSON is worth reading on its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dp_fedmed.privacy import _validate
from dp_fedmed.privacy.accounting.charges import EVERY_CLIENT
from dp_fedmed.privacy.accounting.events import PrivacyEvent
from dp_fedmed.privacy.accounting.history import ACCOUNTANTS, Method

_KEYS: Final = {
    "version",
    "method",
    "target_delta",
    "target_epsilon",
    "user_target_delta",
    "user_target_epsilon",
    "events",
    "user_rounds",
}


@dataclass(frozen=True, kw_only=True)
class AccountantState:
    """A checked state, ready to be charged to a fresh accountant."""

    method: Method
    target_delta: float
    target_epsilon: float | None
    user_target_delta: float
    user_target_epsilon: float | None
    events: list[tuple[str | None, PrivacyEvent]]
    user_calls: dict[int, dict[PrivacyEvent, dict[str, int]]]


def event_rows(
    totals: Mapping[tuple[str, str], Mapping[PrivacyEvent, int]],
) -> list[dict[str, Any]]:
    """Charged events by client, in an order that depends on the events alone."""
    flat = [(place, event, count) for place, by in totals.items() for event, count in by.items()]
    return [
        {"client": None if c == EVERY_CLIENT else c, "event": event.times(count).to_json()}
        for (_, c), event, count in sorted(flat, key=_canonical)
    ]


def _canonical(item: tuple[tuple[str, str], PrivacyEvent, int]) -> tuple[Any, ...]:
    place, event, _ = item
    size = (event.cohort_size or 0, event.population or 0)
    return (*place, event.key, event.sampling, event.noise_multiplier, *size, event.is_private)


def parse_state(state: Mapping[str, Any]) -> AccountantState:
    """Check a state completely.

    Raises:
        ValueError: With what was found and what is allowed.
    """
    try:
        return _parse(state)
    except (TypeError, ValueError, KeyError, OverflowError, RecursionError) as error:
        raise ValueError(f"not an accountant state: {error}") from error


def _parse(state: Mapping[str, Any]) -> AccountantState:
    _exactly(state, _KEYS, "state")
    version = state["version"]
    if isinstance(version, bool) or version != 1:
        raise ValueError(f"version {version!r} is not 1, the only one this release reads")
    events: list[tuple[str | None, PrivacyEvent]] = []
    for index, row in enumerate(_list(state["events"], "events")):
        _exactly(row, {"client", "event"}, f"events[{index}]")
        client = row["client"]
        if client is not None and not isinstance(client, str):
            raise ValueError(f"events[{index}].client must be text or null, got {client!r}")
        events.append((client, PrivacyEvent.from_json(row["event"])))
    calls = _user_calls(state["user_rounds"])
    _user_calls_are_charged(calls, events)
    user_budget = _validate.optional_positive("user_target_epsilon", state["user_target_epsilon"])
    return AccountantState(
        method=_validate.choice("method", state["method"], tuple(ACCOUNTANTS)),
        target_delta=_validate.delta("target_delta", state["target_delta"]),
        target_epsilon=_validate.optional_positive("target_epsilon", state["target_epsilon"]),
        user_target_delta=_validate.delta("user_target_delta", state["user_target_delta"]),
        user_target_epsilon=user_budget,
        events=events,
        user_calls=calls,
    )


def _user_calls(rows: Any) -> dict[int, dict[PrivacyEvent, dict[str, int]]]:
    result: dict[int, dict[PrivacyEvent, dict[str, int]]] = {}
    for index, row in enumerate(_list(rows, "user_rounds")):
        where = f"user_rounds[{index}]"
        _exactly(row, {"round", "event", "calls"}, where)
        round_num = _validate.count(f"{where}.round", row["round"], minimum=0)
        event = PrivacyEvent.from_json(row["event"])
        if event.unit != "client":
            raise ValueError(f"{where}.event must be client-level, got unit={event.unit!r}")
        if not isinstance(row["calls"], Mapping) or not row["calls"]:
            raise ValueError(f"{where}.calls must be an object of client: number")
        by_event = result.setdefault(round_num, {})
        if event in by_event:
            raise ValueError(f"{where} repeats an event of round {round_num}")
        by_event[event] = {
            str(name): _validate.count(f"{where}.calls", n) for name, n in row["calls"].items()
        }
    return result


def _user_calls_are_charged(
    calls: dict[int, dict[PrivacyEvent, dict[str, int]]],
    events: list[tuple[str | None, PrivacyEvent]],
) -> None:
    """A round marked as charged whose charge is missing from ``events`` would be spent for free."""
    charged: dict[PrivacyEvent, int] = {}
    for _, event in events:
        single = dataclasses.replace(event, count=1)
        charged[single] = charged.get(single, 0) + event.count
    marked: dict[PrivacyEvent, int] = {}
    for by_event in calls.values():
        for event, by_client in by_event.items():
            single = dataclasses.replace(event, count=1)
            marked[single] = marked.get(single, 0) + event.count * max(by_client.values())
    for single, steps in marked.items():
        if steps > charged.get(single, 0):
            raise ValueError(
                f"user_rounds marks {steps} steps of {single.to_json()} as charged,"
                f" events hold {charged.get(single, 0)}"
            )


def _exactly(value: Any, keys: set[str], where: str) -> None:
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} must be an object, got {type(value).__name__}")
    missing, unknown = sorted(keys - set(value)), sorted(str(k) for k in set(value) - keys)
    if missing or unknown:
        raise ValueError(f"{where}: missing keys {missing}, unknown keys {unknown}")


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"{where} must be a list, got {type(value).__name__}")
    return list(value)
