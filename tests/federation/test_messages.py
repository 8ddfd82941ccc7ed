"""What goes over the wire: it comes back as it was sent, and nothing of a wrong kind is read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from flwr.app import ConfigRecord

from dp_fedmed.errors import ConfigError
from dp_fedmed.federation.messages import (
    VERSION,
    Introduction,
    RecordAnswer,
    RecordOrder,
    RoundOrder,
    refuse_other_version,
)
from dp_fedmed.federation.plan import ClientPlan, PrivacyPlan
from dp_fedmed.federation.privacy_guard import PrivacyGuard
from dp_fedmed.federation.run_account import Limits

RECORDS = RecordOrder(noise_multiplier=1.25, sample_rate=0.1, steps=10, grad_mode="hooks")
ORDER = RoundOrder(
    input_shape=(1, 8, 8),
    num_classes=3,
    run="r-1",
    streams="s-1",
    phase=2,
    style="sample",
    server_round=7,
    ledger=31,
    records=RECORDS,
    learning={"features": [1, 2], "record_noise": "clients"},
)


@pytest.mark.parametrize(
    "order",
    [
        ORDER,
        replace(ORDER, records=None),
        replace(ORDER, server_round=None, ledger=None),
        replace(ORDER, learning={}, input_shape=()),
        replace(ORDER, server_round=0, ledger=0, phase=0),
    ],
)
def test_an_order_is_read_as_it_was_sent(order: RoundOrder) -> None:
    sent = order.to_record()
    assert sent["version"] == VERSION
    assert RoundOrder.from_record(sent) == order


def test_what_is_not_ordered_is_not_sent() -> None:
    plain = replace(ORDER, server_round=None, ledger=None, records=None).to_record()
    assert not plain.keys() & {"round", "ledger", *RECORDS.to_dict()}
    assert ORDER.to_record().keys() >= {"round", "ledger", *RECORDS.to_dict()}


def test_an_order_without_a_version_is_the_first_ones() -> None:
    sent = ORDER.to_record()
    del sent["version"]
    assert RoundOrder.from_record(sent) == ORDER


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("run", 1), ("streams", b"s"), ("style", 0.5), ("grad_mode", 1)),
        *(("phase", "2"), ("phase", 2.0), ("phase", True), ("num_classes", "3")),
        *(("round", 1.5), ("round", True), ("ledger", "31"), ("steps", 10.0), ("steps", False)),
        *(("noise_multiplier", "1.0"), ("noise_multiplier", True), ("sample_rate", [0.1])),
        *(("input_shape", 8), ("input_shape", "8"), ("input_shape", [1.0, 8.0])),
    ],
)
def test_a_value_of_a_wrong_kind_is_refused_by_its_key(key: str, value: Any) -> None:
    sent = ORDER.to_record()
    sent[key] = value
    with pytest.raises(ConfigError, match=f"round order has {key}="):
        RoundOrder.from_record(sent)


@pytest.mark.parametrize(
    "key",
    [
        *("input_shape", "num_classes", "run", "streams", "phase", "style"),
        *("sample_rate", "steps", "grad_mode"),
    ],
)
def test_a_value_that_is_missing_is_refused_by_its_key(key: str) -> None:
    sent = ORDER.to_record()
    del sent[key]
    with pytest.raises(ConfigError, match=f"{key}=None"):
        RoundOrder.from_record(sent)


def test_a_whole_number_is_a_number() -> None:
    sent = ORDER.to_record()
    sent["noise_multiplier"], sent["sample_rate"] = 2, 1
    read = RoundOrder.from_record(sent).records
    assert read == replace(RECORDS, noise_multiplier=2.0, sample_rate=1.0)
    assert read is not None
    assert type(read.noise_multiplier) is float


@pytest.mark.parametrize("version", [VERSION + 1, 0, "1", -1])
def test_messages_of_another_version_are_refused_with_both(version: Any) -> None:
    sent = ORDER.to_record()
    sent["version"] = version
    with pytest.raises(ConfigError, match=rf"version {version!r} .* version {VERSION}"):
        RoundOrder.from_record(sent)
    with pytest.raises(ConfigError, match="install the same dp_fedmed"):
        refuse_other_version({"version": version})


def test_a_clients_answer_is_what_the_guard_reads() -> None:
    own = ClientPlan(records=50, sample_rate=0.1, steps=10, participations=5, noise_multiplier=1.25)
    plan = PrivacyPlan(delta_sample=1e-5, delta_user=None, clients={"a": own}, user_event=None)
    guard = PrivacyGuard(Limits(rounds=5), plan, grad_mode="hooks")
    assert guard.order("a") == RECORDS
    assert guard.order("b") is None
    answer = RecordAnswer(noise_multiplier=1.25, sample_rate=0.1, steps=10, charges=2)
    sent = answer.to_record()
    assert dict(sent) == {
        "noise_multiplier": 1.25,
        "sample_rate": 0.1,
        "steps": 10,
        "charges": 2,
    }
    assert RecordAnswer(**dict(sent)) == answer  # type: ignore[arg-type]
    guard.check_reply("a", sent)
    for other in (replace(answer, steps=9), replace(answer, noise_multiplier=1.2)):
        with pytest.raises(ValueError, match="it reported"):
            guard.check_reply("a", other.to_record())
    for charges in (0, 17, "2", 1.5):
        with pytest.raises(ValueError, match=r"charges|answered 17 times"):
            guard.check_reply("a", ConfigRecord({**dict(sent), "charges": charges}))


def test_an_introduction_leaves_out_what_there_is_nothing_to_say_of() -> None:
    assert dict(Introduction().to_record()) == {"version": VERSION}
    whole = Introduction(
        name="north", num_partitions=3, num_records=0, own_data=True, refusal="no data"
    )
    assert dict(whole.to_record()) == {
        "version": VERSION,
        "name": "north",
        "num-partitions": 3,
        "num-records": 0,
        "own-data": True,
        "refusal": "no data",
    }
    assert "own-data" not in Introduction(name="north", own_data=False).to_record()
