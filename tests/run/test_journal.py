"""Charges as the ledger holds them."""

from __future__ import annotations

import numpy as np

from dp_fedmed.federation.charges import Charge
from dp_fedmed.privacy import PrivacyEvent
from dp_fedmed.privacy.ledger import Record
from dp_fedmed.privacy.mechanisms.base import exact_inputs
from dp_fedmed.privacy.streams.noise import NoiseKey
from dp_fedmed.privacy.streams.rounds import RoundStreams
from dp_fedmed.run.spent import CHARGE

RECORD = PrivacyEvent.poisson(
    unit="record", noise_multiplier=2.0, sample_rate=0.1, count=3, adjacency="zero_out"
)
CLIENT = PrivacyEvent.full(unit="client", noise_multiplier=5.0)


def test_a_charge_is_read_back_as_it_was_written() -> None:
    for charge in (
        Charge(phase=0, server_round=1, digest="00", cohort=[]),
        Charge(
            phase=2,
            server_round=7,
            digest="ab",
            cohort=["a", "b"],
            federation=CLIENT,
            clients={"a": RECORD, "b": RECORD},
            again=True,
            number=4,
        ),
    ):
        record = Record(charge.number, CHARGE, charge.body(), "")
        assert Charge.from_record(record) == charge


def test_the_same_round_is_that_of_phase_number_and_digest() -> None:
    first = Charge(phase=0, server_round=1, digest="00", cohort=["a"])
    assert first.key == Charge(phase=0, server_round=1, digest="00", cohort=["b"], number=9).key
    others = [(1, 1, "00"), (0, 2, "00"), (0, 1, "01")]
    for phase, server_round, digest in others:
        other = Charge(phase=phase, server_round=server_round, digest=digest, cohort=["a"])
        assert other.key != first.key


def test_the_ledger_never_holds_the_digest_that_streams_use() -> None:
    key = NoiseKey.from_public_seed(1)
    streams = RoundStreams(key, "run", 1, bytes(32))
    total = {"w": np.arange(4.0), "b": np.ones(1)}
    private = key.private_digest(list(total.values()))
    assert exact_inputs(total, streams) == exact_inputs(dict(total), streams)
    assert private.hex() not in exact_inputs(total, streams)
    assert exact_inputs(total, streams) != exact_inputs(
        {"w": np.zeros(4), "b": np.ones(1)}, streams
    )
