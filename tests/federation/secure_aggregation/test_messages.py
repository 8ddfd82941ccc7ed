"""Messages survive Flower's records, and what cannot be read is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord

from dp_fedmed.errors import MaskingRefused
from dp_fedmed.federation.secure_aggregation import MaskedSum, Revealed, Terms, add_up
from dp_fedmed.federation.secure_aggregation.plain import Plain
from tests.federation.secure_aggregation.attempts import Attempt, terms


def test_every_message_survives_a_record() -> None:
    attempt = Attempt(4, terms())
    request = attempt.requested(without=["site-003"])
    client = attempt.client["site-000"]
    roster = attempt.server.roster()
    sent: list[Plain] = [
        *(attempt.agreed, client.advertise(), roster, client.share(roster), client.state),
        *(attempt.server.deliveries()["site-000"], request, client.reveal(request)),
    ]
    for message in sent:
        read = type(message).from_record(ConfigRecord(message.to_record()))
        assert read == message
        assert read.digest() == message.digest()


def test_a_masked_sum_survives_its_header_and_array() -> None:
    masked = Attempt(4, terms()).one()
    read = MaskedSum.from_parts(ConfigRecord(masked.header()), masked.values)
    assert (read.attempt, read.names) == (masked.attempt, masked.names)
    for wrong in (masked.values.view(np.int64), masked.values[None]):
        with pytest.raises(MaskingRefused, match="unsigned"):
            MaskedSum.from_parts(masked.header(), wrong)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"sender": 3}, "sender"),
        ({"attempt": None}, "attempt"),
        ({"self_shares": [b"x"]}, "self_shares"),
        ({"self_shares": ["x", "y"]}, "self_shares"),
        ({"self_shares.names": ["ann", ""]}, "self_shares"),
        ({"self_shares.names": ["ann", "ann"]}, "a name twice"),
    ],
)
def test_what_cannot_be_read_is_refused(changed: dict[str, Any], why: str) -> None:
    record = Revealed(b"1", "ann", {"ann": b"x", "bob": b"y"}, {}).to_record()
    with pytest.raises(MaskingRefused, match=why):
        Revealed.from_record({**record, **changed})


def test_truth_is_no_number() -> None:
    with pytest.raises(MaskingRefused, match="length"):
        Terms.from_record({**terms().to_record(), "length": True})


def test_only_contributions_of_one_attempt_add_up() -> None:
    one = MaskedSum(b"1", ("ann",), np.full(2, 2**63, np.uint64))
    two = MaskedSum(b"1", ("bob",), np.full(2, 2**63 + 1, np.uint64))
    total = add_up([one, two])
    assert (total.names, total.values.tolist()) == (("ann", "bob"), [1, 1])
    assert one.values.tolist() == [2**63, 2**63]
    for wrong in ([one, one], [], [one, MaskedSum(b"2", ("bob",), two.values)]):
        with pytest.raises(MaskingRefused):
            add_up(wrong)


@pytest.mark.parametrize(
    "changed",
    [{"run": ""}, {"length": 0}, {"attempt": -1}, {"minimum": 1}, {"colluding": 2}],
)
def test_terms_that_hide_nobody_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(MaskingRefused):
        terms(**changed)
