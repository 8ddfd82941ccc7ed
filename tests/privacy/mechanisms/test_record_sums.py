"""Noise at a trusted server: a client counts with its records, and no record for more than 1."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from dp_fedmed.privacy.accounting.events import PrivacyEvent
from dp_fedmed.privacy.mechanisms.base import add
from dp_fedmed.privacy.mechanisms.dp_sgd import DPSGD
from dp_fedmed.privacy.mechanisms.record_sums import RecordSums
from dp_fedmed.privacy.mechanisms.statistic import StatisticMean
from dp_fedmed.privacy.streams.noise import NoiseKey
from dp_fedmed.privacy.streams.rounds import RoundStreams

RECORDS = {"a": 3, "b": 5}
EVENT = PrivacyEvent.full(unit="record", noise_multiplier=2.0)
LIKE = {"vector": np.zeros(2)}


STEP = RecordSums(EVENT, records=RECORDS).sums.grid.step


def summed(answers: dict[str, list[float]]) -> np.ndarray:
    """The noise-off sum, in the answers' own unit."""
    mechanism = RecordSums(EVENT, records=RECORDS)
    total = mechanism.empty(LIKE)
    for client, answer in answers.items():
        steps = np.trunc(np.array(answer) / STEP).astype(np.int64)
        add(total, mechanism.bound({"vector": steps}, client=client))
    return total["vector"] * STEP


def test_clients_sums_are_added_up() -> None:
    assert summed({"a": [1.5, 0.0], "b": [0.0, -2.5]}) == pytest.approx([1.5, -2.5])


def test_no_answer_outweighs_its_own_number_of_records() -> None:
    assert summed({"a": [2.9, 0.0]})[0] == pytest.approx(2.9)
    assert summed({"a": [4.1, 0.0], "b": [1.0, 0.0]}) == pytest.approx([1.0, 0.0])
    assert not summed({"a": [1e9, -1e9]}).any()


def test_answers_are_integers() -> None:
    like = RecordSums(EVENT, records=RECORDS).answer_like(LIKE)
    assert like["vector"].dtype == np.int64


def test_the_denominator_is_public_and_part_of_the_release() -> None:
    assert RecordSums(EVENT, records=RECORDS, share=0.5).expected_cohort == 4.0
    one, other = (RecordSums(EVENT, records={"a": n}).order()["records"] for n in (3, 4))
    assert (one, other) == (3.0, 4.0)


def test_the_noise_of_the_sum_has_the_scale_that_is_charged() -> None:
    mechanism = RecordSums(EVENT, records=RECORDS)
    total = mechanism.empty({"vector": np.zeros(20_000)})
    streams = RoundStreams(NoiseKey.from_public_seed(1), "run", 1, bytes(32))
    released = 8.0 * mechanism.release(total, streams)["vector"]
    assert released.std() == pytest.approx(2.0, rel=0.03)
    assert abs(released.mean()) < 0.06


def test_it_costs_its_event_and_hides_no_cohort() -> None:
    mechanism = RecordSums(EVENT, records=RECORDS)
    assert mechanism.cost(4) == [EVENT.times(4)]
    assert (mechanism.noised_by, mechanism.hides_cohorts) == ("server", False)
    assert mechanism.std == 2.0


def test_one_record_moves_the_sum_by_at_most_one() -> None:
    """Client b's five vectors, as the client bounds them, with one of them turned to zero."""
    own = StatisticMean(noise_multiplier=2.0, records=5, noised_by="server")
    vectors = 100.0 * np.random.default_rng(0).normal(size=(5, 2))
    without = vectors.copy()
    without[0] = 0.0
    moved = own.bound(vectors).sum(0) - own.bound(without).sum(0)
    assert own.sums.grid == RecordSums(EVENT, records=RECORDS).sums.grid
    assert sum(int(step) ** 2 for step in moved) * Fraction(STEP) ** 2 <= 1


def both(sigma: float = 2.0, client_sigma: float = 1.5) -> RecordSums:
    event = PrivacyEvent.poisson(unit="client", noise_multiplier=client_sigma, sample_rate=0.5)
    return RecordSums(
        event,
        records=RECORDS,
        max_norm=0.5,
        sensitivity=0.501,
        noise_multiplier=sigma,
        client_norm=4.0,
    )


def test_one_noise_is_enough_for_a_record_and_for_a_client() -> None:
    assert both().std == 1.5 * 4.0, "a client needs more"
    assert both(sigma=20.0).std == 20.0 * 0.501, "a record does"
    assert both().hides_cohorts
    assert both().cost(3) == [both().event.times(3)]


def test_a_clients_sum_is_bounded_where_clients_are_protected() -> None:
    mechanism = RecordSums(
        PrivacyEvent.full(unit="client", noise_multiplier=1.0),
        records={"a": 1000},
        noise_multiplier=1.0,
        client_norm=4.0,
    )
    unit = int(1 / mechanism.sums.grid.step)
    inside, outside = ({"w": np.array([n * unit, 0])} for n in (3, 5))
    assert mechanism.bound(inside, client="a")["w"][0] == 3 * unit
    projected = int(mechanism.bound(outside, client="a")["w"][0])
    assert 3.999 * unit < projected <= 4 * unit, "projected, not left out"
    own = DPSGD(
        noise_multiplier=1.0, max_grad_norm=1.0, sample_rate=1.0, steps=1, grad_mode="hooks",
        physical_batch_size=8, noised_by="server", client_norm=4.0,
    )  # fmt: skip
    steps = own.exact_sum([np.full(100, 7.0), np.array([-3.0])])
    assert own.grid == mechanism.sums.grid
    assert sum(int(v) ** 2 for part in steps for v in part) * Fraction(own.grid.step) ** 2 <= 16
    kept = mechanism.bound({"w": steps[0], "b": steps[1]}, client="a")
    assert np.array_equal(kept["w"], steps[0])


def test_projecting_a_clients_sum_does_not_lengthen_what_a_record_moves() -> None:
    own = DPSGD(
        noise_multiplier=1.0, max_grad_norm=1.0, sample_rate=1.0, steps=1, grad_mode="hooks",
        physical_batch_size=8, noised_by="server", client_norm=2.0,
    )  # fmt: skip
    rng = np.random.default_rng(1)
    allowed = own.sensitivity(weights=40, records=30)
    for _ in range(40):
        rows = rng.normal(size=(30, 40)) + 1.0
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        with_it, without = (own.exact_sum([part.sum(0)])[0] for part in (rows, rows[1:]))
        moved = Fraction(int(((with_it - without).astype(object) ** 2).sum()))
        assert moved * Fraction(own.grid.step) ** 2 <= Fraction(allowed) ** 2


def test_an_order_tells_one_noise_from_another() -> None:
    orders = [both().order(), both(sigma=20.0).order(), both(client_sigma=3.0).order()]
    assert len({tuple(order.items()) for order in orders}) == 3


@pytest.mark.parametrize("frozen", [0, 1_000_000, 12_000_000])
@pytest.mark.parametrize("norm", [1.0, 10.0, 100.0])
def test_an_honest_clients_sum_passes_as_it_is_beside_any_number_of_frozen_weights(
    frozen: int, norm: float
) -> None:
    """Were it refused, the record that takes a sum across the bound would move all of it."""
    own = DPSGD(
        noise_multiplier=1.0, max_grad_norm=1.0, sample_rate=1.0, steps=1, grad_mode="hooks",
        physical_batch_size=8, noised_by="server", client_norm=norm,
    )  # fmt: skip
    mechanism = RecordSums(
        PrivacyEvent.full(unit="client", noise_multiplier=1.0),
        records={"a": 1000},
        noise_multiplier=1.0,
        client_norm=norm,
    )
    still = np.zeros(frozen, np.int64)
    rng = np.random.default_rng(2)
    for length in (0.9, 1.0, 1.0 + 2.0**-50, 1.5, 9.0):
        gradients = rng.normal(size=130)
        gradients *= length * norm / np.linalg.norm(gradients)
        (steps,) = own.exact_sum([gradients])
        kept = mechanism.bound({"w": steps, "frozen": still}, client="a")
        assert np.array_equal(kept["w"], steps), (length, norm)


def test_a_projected_statistic_is_charged_with_what_rounding_adds() -> None:
    own = StatisticMean(noise_multiplier=30.0, records=30, noised_by="server", client_norm=2.0)
    allowed = own.sensitivity(weights=5000)
    assert 1.0 < allowed < 1.0001
    assert StatisticMean(noise_multiplier=1.0, records=3).sensitivity(weights=9) == 1.0
    streams = RoundStreams(NoiseKey.from_public_seed(1), "run", 1, bytes(32))
    vectors = np.abs(np.random.default_rng(3).normal(size=(30, 5000)))
    rows = own.bound(vectors)
    sums = [own.release(part.sum(0), streams).astype(object) for part in (rows, rows[1:])]
    moved = Fraction(int(((sums[0] - sums[1]) ** 2).sum())) * Fraction(own.sums.grid.step) ** 2
    assert moved <= Fraction(allowed) ** 2
