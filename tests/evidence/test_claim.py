"""What a report promises one record and one client, against whoever has the model."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dp_fedmed.evidence.claim import Claim, client_claim, record_claim
from dp_fedmed.privacy import History, PrivacyEvent, chained_epsilon

RECORD = {"unit": "record", "epsilon": 3.0, "delta": 1e-5}
CLIENT = {
    "unit": "client",
    "epsilon": 8.0,
    "delta": 1e-3,
    "adjacency": "add_remove",
    "history": [[2.0, 0.5, 10]],
}


def report(*guarantees: dict[str, Any]) -> dict[str, Any]:
    return {"guarantees": list(guarantees)}


def test_without_a_guarantee_nothing_is_claimed() -> None:
    assert record_claim(report()) is None
    assert client_claim(report(RECORD)) is None


def test_a_guarantee_for_a_client_is_worth_two_of_its_steps_for_a_record() -> None:
    event = PrivacyEvent.poisson(unit="client", noise_multiplier=2.0, sample_rate=0.5, count=10)
    claim = record_claim(report(CLIENT))
    assert claim is not None
    assert claim.epsilon == chained_epsilon(History([event]), size=2, delta=1e-3)
    assert claim.epsilon > History([event]).epsilon(delta=1e-3)
    replaced = record_claim(report(CLIENT | {"adjacency": "replace_one"}))
    assert replaced is not None
    assert replaced.epsilon == 8.0


def test_the_smallest_of_what_follows_is_claimed() -> None:
    both = record_claim(report(CLIENT, RECORD))
    assert both == Claim(epsilon=3.0, delta=1e-5, source="the guarantee for a record")
    assert record_claim(report(RECORD | {"epsilon": float("inf")})) is None
    own = client_claim(report(RECORD, CLIENT))
    assert own is not None
    assert (own.epsilon, own.delta) == (8.0, 1e-3)


def test_a_claim_bounds_an_attack() -> None:
    nothing = Claim(epsilon=0.0, delta=0.0, source="")
    assert nothing.advantage == pytest.approx(0.0)
    assert nothing.tpr(0.2) == pytest.approx(0.2)
    assert Claim(epsilon=1.0, delta=0.0, source="").tpr(0.1) == pytest.approx(0.271828, rel=1e-5)


def test_the_bound_is_what_an_optimal_attack_on_randomised_response_reaches() -> None:
    claim = Claim(epsilon=1.2, delta=0.0, source="")
    truth = math.exp(1.2) / (1 + math.exp(1.2))  # of answering honestly
    assert claim.tpr(1 - truth) == pytest.approx(truth)
    assert claim.advantage == pytest.approx(2 * truth - 1)
    claim = Claim(epsilon=0.7, delta=0.05, source="")
    grid = np.linspace(0, 1, 10001)
    assert (claim.tpr(grid) - grid).max() == pytest.approx(claim.advantage, abs=1e-3)
    assert Claim(epsilon=1e6, delta=0.0, source="").tpr(0.3) == 1.0
