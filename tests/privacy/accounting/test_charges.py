"""Who is charged for what: one name a client, and plans taken apart."""

from __future__ import annotations

from typing import Any

import pytest

from dp_fedmed.privacy import PrivacyEvent
from dp_fedmed.privacy.accounting.charges import (
    EVERY_CLIENT,
    charges_of,
    client_name,
    poisson_or_none,
)

RECORD = PrivacyEvent.full(unit="record", noise_multiplier=2.0)
CLIENT = PrivacyEvent.full(unit="client", noise_multiplier=3.0)


def test_a_number_and_its_text_are_one_client() -> None:
    assert client_name(1) == client_name("1") == "1"
    assert client_name(None) == EVERY_CLIENT
    for word in ("", EVERY_CLIENT):
        with pytest.raises(ValueError, match="is not a client name"):
            client_name(word)
    with pytest.raises(TypeError, match="must be a name"):
        client_name(True)


def test_three_arguments_make_an_event_and_none_make_none() -> None:
    made = poisson_or_none("record", "sample", 1.5, 0.1, 7)
    assert made == PrivacyEvent.poisson(
        unit="record", noise_multiplier=1.5, sample_rate=0.1, count=7
    )
    assert poisson_or_none("record", "sample", None, None, None) is None
    with pytest.raises(ValueError, match="sample_rate_user, steps_user not given"):
        poisson_or_none("client", "user", 1.5, None, None)


@pytest.mark.parametrize(
    ("plan", "client", "charged"),
    [
        (RECORD, "a", [("a", RECORD)]),
        (RECORD, None, [(EVERY_CLIENT, RECORD)]),
        (CLIENT, "a", [(EVERY_CLIENT, CLIENT)]),
        ([RECORD, CLIENT], "a", [("a", RECORD), (EVERY_CLIENT, CLIENT)]),
        ({"a": RECORD, "b": [RECORD, RECORD]}, None, [("a", RECORD), *[("b", RECORD)] * 2]),
    ],
)
def test_a_plan_is_taken_apart(plan: Any, client: str | None, charged: list[Any]) -> None:
    assert list(charges_of(plan, client)) == charged


def test_what_is_no_plan_is_refused() -> None:
    with pytest.raises(ValueError, match="names its clients itself"):
        list(charges_of({"a": RECORD}, "a"))
    with pytest.raises(TypeError, match="a plan holds PrivacyEvents, got 3"):
        list(charges_of([3], "a"))  # type: ignore[list-item]
