"""What a round is charged with, as a ledger holds it."""

from __future__ import annotations

import json

import pytest

from dp_fedmed.federation.charges import OLD_RELATION, Charge, from_entries, to_entries
from dp_fedmed.privacy import PrivacyEvent
from dp_fedmed.privacy.ledger import Record

RECORD = PrivacyEvent.poisson(
    unit="record", noise_multiplier=2.0, sample_rate=0.1, count=3, adjacency="zero_out"
)
ROWS = PrivacyEvent.full(unit="record", noise_multiplier=4.0, adjacency="replace_one")
CLIENT = PrivacyEvent.full(unit="client", noise_multiplier=5.0)
CHARGE = Charge(
    phase=1,
    server_round=3,
    digest="ab",
    cohort=["b", "a"],
    federation=CLIENT,
    clients={"a": RECORD, "b": ROWS, "c": RECORD},
)


def test_clients_of_one_event_share_an_entry_and_come_back_apart() -> None:
    entries = to_entries(CHARGE.clients)
    assert [entry["names"] for entry in entries] == [["a", "c"], ["b"]]
    assert from_entries(json.loads(json.dumps(entries))) == CHARGE.clients
    assert from_entries(to_entries({})) == {}


@pytest.mark.parametrize("federation", [None, CLIENT])
def test_a_charge_goes_through_json_unchanged(federation: PrivacyEvent | None) -> None:
    charge = Charge(**{**vars(CHARGE), "federation": federation, "again": True, "number": 12})
    body = json.loads(json.dumps(charge.body()))
    assert Charge.from_record(Record(12, "CHARGE", body, "")) == charge


def test_an_older_name_of_the_relation_is_read_as_the_one_of_today() -> None:
    old = PrivacyEvent.full(unit="record", noise_multiplier=4.0, adjacency=OLD_RELATION)
    read = from_entries([{"event": old.to_json(), "names": ["a", "b"]}])
    assert {name: event.adjacency for name, event in read.items()} == dict.fromkeys(
        "ab", "zero_out"
    )
    assert from_entries(to_entries({"a": ROWS}))["a"].adjacency == "replace_one"


def test_a_charge_is_not_written_yet_and_names_its_round() -> None:
    assert CHARGE.number == -1
    assert CHARGE.key == (1, 3, "ab")
    assert CHARGE.body()["cohort"] == ["b", "a"], "in the order that it was drawn"
    assert CHARGE.body()["cohort"] is not CHARGE.cohort
