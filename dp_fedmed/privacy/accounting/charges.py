"""Who is charged for what: client names, and plans taken apart into (client, event) pairs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from dp_fedmed.privacy.accounting.events import PrivacyEvent, Unit

#: Name under which events that concern every client are listed.
EVERY_CLIENT: Final = "*"

#: One round's events: for every client (or the federation), or by client name.
Plan = PrivacyEvent | Sequence[PrivacyEvent] | Mapping[str, PrivacyEvent | Sequence[PrivacyEvent]]


def client_name(client: str | int | None) -> str:
    """Names are text: 1 and "1" are the same client, so that no history is split in two."""
    if client is None:
        return EVERY_CLIENT
    if isinstance(client, bool) or not isinstance(client, str | int):
        raise TypeError(f"client must be a name (text or number), got {client!r}")
    if client in ("", EVERY_CLIENT):
        raise ValueError(f"{client!r} is not a client name; leave client=None for every client")
    return str(client)


def poisson_or_none(
    unit: Unit, level: str, sigma: float | None, q: float | None, steps: int | None
) -> PrivacyEvent | None:
    """The event of three protocol arguments, none of them or all."""
    given = {f"noise_multiplier_{level}": sigma, f"sample_rate_{level}": q, f"steps_{level}": steps}
    missing = [name for name, value in given.items() if value is None]
    if len(missing) == 3:
        return None
    if sigma is None or q is None or steps is None:
        raise ValueError(
            f"{', '.join(missing)} not given although other {level}-level arguments are;"
            " give all three, or none for a round without such an event"
        )
    return PrivacyEvent.poisson(unit=unit, noise_multiplier=sigma, sample_rate=q, count=steps)


def charges_of(plan: Plan, client: str | None) -> Iterator[tuple[str, PrivacyEvent]]:
    """Flatten a plan into (client, event) pairs."""
    if isinstance(plan, Mapping):
        if client is not None:
            raise ValueError("a plan by client names its clients itself; leave client=None")
        for name, events in plan.items():
            yield from charges_of(events, name)
        return
    for event in [plan] if isinstance(plan, PrivacyEvent) else plan:
        if not isinstance(event, PrivacyEvent):
            raise TypeError(f"a plan holds PrivacyEvents, got {event!r}")
        yield (EVERY_CLIENT if event.unit == "client" else client_name(client)), event
