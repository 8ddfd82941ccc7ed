"""How many rounds fit a budget, and bounds of what many clients have spent."""

from __future__ import annotations

import pytest

from dp_fedmed.federation.budget import MOST_EACH_ROUND, Question, RoundBudget, bounded_epsilons
from dp_fedmed.privacy import History, PrivacyEvent, compute_max_rounds

EVENT = PrivacyEvent.full(unit="record", noise_multiplier=5.0)


def question(target: float | None, planned: int = 100, before: History | None = None) -> Question:
    return Question(
        event=EVENT, before=before or History(), target=target, delta=1e-5, planned=planned
    )


def within(target: float) -> int:
    return compute_max_rounds(
        noise_multiplier=5.0,
        target_epsilon=target,
        target_delta=1e-5,
        sample_rate=1.0,
        steps_per_round=1,
        accountant="exact",
    )


def test_as_many_rounds_fit_as_the_accountant_says() -> None:
    budget, asked = RoundBudget("tight"), question(2.0)
    assert budget.most(asked) == within(2.0)
    assert budget.fits(asked, within(2.0))
    assert not budget.fits(asked, within(2.0) + 1)
    assert (
        asked.epsilon_of(within(2.0), "exact") <= 2.0 < asked.epsilon_of(within(2.0) + 1, "tight")
    )


def test_what_was_spent_before_counts() -> None:
    before = History([EVENT.times(3)])
    assert RoundBudget("tight").most(question(2.0, before=before)) == within(2.0) - 3
    spent = History([EVENT.times(1000)])
    assert RoundBudget("tight").most(question(2.0, before=spent)) == 0


def test_without_a_target_everything_fits() -> None:
    assert RoundBudget("tight").most(question(None)) == 100
    assert RoundBudget("rdp").fits(question(1e-9), 0), "no round costs nothing"
    assert RoundBudget("rdp").most(question(1e6, planned=7)) == 7


def test_answers_are_the_same_in_any_order() -> None:
    first, second = RoundBudget("tight"), RoundBudget("tight")
    rounds = range(1, within(2.0) + 3)
    up = [first.fits(question(2.0), n) for n in rounds]
    down = [second.fits(question(2.0), n) for n in reversed(rounds)]
    assert up == down[::-1]
    assert up == sorted(up, reverse=True)


def sampled(sigma: float) -> History:
    event = PrivacyEvent.poisson(unit="record", noise_multiplier=sigma, sample_rate=0.1, count=10)
    return History([event])


def test_between_rounds_many_different_clients_count_with_bounds() -> None:
    few = {f"c{n}": sampled(1.0 + n) for n in range(MOST_EACH_ROUND)}
    found, own = bounded_epsilons(few, delta=1e-5, method="pld", exact=False)
    assert own
    assert found["c0"] == few["c0"].epsilon(delta=1e-5, method="pld")
    many = few | {"full": History([EVENT]), "more": sampled(9.0)}
    found, own = bounded_epsilons(many, delta=1e-5, method="tight", exact=False)
    assert not own
    assert found["c0"] == many["c0"].epsilon(delta=1e-5, method="rdp")
    assert found["full"] == pytest.approx(History([EVENT]).epsilon(delta=1e-5, method="exact"))


def test_clients_of_one_history_are_one_question() -> None:
    alike = {f"c{n}": sampled(1.0) for n in range(10 * MOST_EACH_ROUND)}
    found, own = bounded_epsilons(alike, delta=1e-5, method="pld", exact=False)
    assert own
    assert len(set(found.values())) == 1
