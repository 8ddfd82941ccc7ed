"""Noise at a trusted server: a client counts with its records, and no record for more than 1."""

from __future__ import annotations

import numpy as np
import pytest

from dp_fedmed.privacy.accounting.events import PrivacyEvent
from dp_fedmed.privacy.mechanisms.base import add
from dp_fedmed.privacy.mechanisms.record_means import RecordMeans
from dp_fedmed.privacy.streams.noise import NoiseKey
from dp_fedmed.privacy.streams.rounds import RoundStreams

RECORDS = {"a": 3, "b": 5}
EVENT = PrivacyEvent.full(unit="record", noise_multiplier=2.0)
LIKE = {"vector": np.zeros(2)}


def summed(answers: dict[str, list[float]]) -> np.ndarray:
    mechanism = RecordMeans(EVENT, records=RECORDS)
    total = mechanism.empty(LIKE)
    for client, answer in answers.items():
        add(total, mechanism.bound({"vector": np.array(answer)}, client=client))
    return total["vector"]


def test_a_clients_mean_counts_as_often_as_it_has_records() -> None:
    assert summed({"a": [0.5, 0.0], "b": [0.0, -0.5]}) == pytest.approx([1.5, -2.5])


def test_no_answer_outweighs_its_own_number_of_records() -> None:
    assert np.linalg.norm(summed({"a": [1e9, -1e9]})) <= 3.0
    assert summed({"a": [np.nan, 0.0], "b": [1.0, 0.0]}) == pytest.approx([5.0, 0.0])


def test_the_denominator_is_public_and_part_of_the_release() -> None:
    assert RecordMeans(EVENT, records=RECORDS, share=0.5).expected_cohort == 4.0
    one, other = (RecordMeans(EVENT, records={"a": n}).order()["records"] for n in (3, 4))
    assert (one, other) == (3.0, 4.0)


def test_the_noise_of_the_sum_has_the_scale_that_is_charged() -> None:
    mechanism = RecordMeans(EVENT, records=RECORDS)
    total = mechanism.empty({"vector": np.zeros(20_000)})
    streams = RoundStreams(NoiseKey.from_public_seed(1), "run", 1, bytes(32))
    released = 8.0 * mechanism.release(total, streams)["vector"]
    assert released.std() == pytest.approx(2.0, rel=0.03)
    assert abs(released.mean()) < 0.06


def test_it_costs_its_event_and_hides_no_cohort() -> None:
    mechanism = RecordMeans(EVENT, records=RECORDS)
    assert mechanism.cost(4) == [EVENT.times(4)]
    assert (mechanism.noised_by, mechanism.hides_cohorts) == ("server", False)
    assert mechanism.std == 2.0


def test_one_record_moves_the_sum_by_at_most_one() -> None:
    """Client b's mean of five vectors of norm 1, with one of them turned to zero."""
    vectors = np.random.default_rng(0).normal(size=(5, 2))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    without = vectors.copy()
    without[0] = 0.0
    moved = summed({"b": vectors.mean(0).tolist()}) - summed({"b": without.mean(0).tolist()})
    assert np.linalg.norm(moved) <= 1.0 + 1e-12
