"""What a run has spent: everybody who ever took part counts, and secret cohorts stay secret."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dp_fedmed.federation.charges import Charge
from dp_fedmed.federation.plan import ClientPlan, PrivacyPlan
from dp_fedmed.federation.run_account import (
    MOST_EACH_ROUND,
    Limits,
    Question,
    RoundBudget,
    RunAccount,
    bounded_epsilons,
)
from dp_fedmed.privacy import History, PrivacyEvent, compute_max_rounds

DELTA = 1e-5
OWN = ClientPlan(records=100, sample_rate=1.0, steps=2, participations=None, noise_multiplier=5.0)
WEAK = replace(OWN, noise_multiplier=1.0)
USER = PrivacyEvent.full(unit="client", noise_multiplier=6.0)


def plan_of(user: PrivacyEvent | None = None, **clients: ClientPlan) -> PrivacyPlan:
    delta_user = None if user is None else DELTA
    return PrivacyPlan(delta_sample=DELTA, delta_user=delta_user, clients=clients, user_event=user)


def account_of(
    plan: PrivacyPlan, past: dict[int, PrivacyPlan] | None = None, **limits: Any
) -> RunAccount:
    past = past or {}
    return RunAccount(Limits(rounds=10, **limits), plan, past, phase=len(past))


def charge(plan: PrivacyPlan, *cohort: str, phase: int = 0, **more: Any) -> Charge:
    held: dict[str, Any] = {
        "clients": {name: plan.clients[name].round_event for name in cohort},
        "federation": plan.user_event,
    }
    return Charge(phase=phase, server_round=1, digest="", cohort=list(cohort), **held | more)


def epsilon(event: PrivacyEvent, count: int = 1) -> float:
    return History([event.times(count)]).epsilon(delta=DELTA, method="exact")


def test_the_worst_client_that_took_part_is_the_guarantee() -> None:
    plan = plan_of(a=OWN, b=WEAK)
    account = account_of(plan)
    assert account.epsilons() == {"sample": 0.0}
    account.record(charge(plan, "a"))
    assert account.epsilons()["sample"] == pytest.approx(epsilon(OWN.round_event))
    account.record(charge(plan, "a", "b"))
    assert account.epsilons()["sample"] == pytest.approx(epsilon(WEAK.round_event))
    assert account.published_epsilons() == account.epsilons(), "cohorts are public here"
    assert (account.rounds_shown("a"), account.rounds_shown("b")) == (2, 1)


def test_with_secret_cohorts_everybody_counts_as_if_always_there() -> None:
    plan = plan_of(USER, a=OWN, b=WEAK)
    account = account_of(plan)
    for _ in range(2):
        account.record(charge(plan, "a"))
    assert account.hidden
    shown = account.published_epsilons()
    assert shown["sample"] == pytest.approx(epsilon(WEAK.round_event, 2)), "though b never came"
    assert shown["user"] == pytest.approx(epsilon(USER, 2))
    assert account.epsilons()["sample"] == pytest.approx(epsilon(OWN.round_event, 2))
    assert {account.rounds_shown(name) for name in "ab"} == {2}


def test_what_is_shown_does_not_depend_on_who_took_part() -> None:
    plan = plan_of(USER, a=OWN, b=WEAK)
    shown = []
    for cohort in ((), ("a",), ("a", "b")):
        account = account_of(plan)
        account.record(charge(plan, *cohort))
        shown.append((account.published_epsilons(), account.planned_epsilons(3)))
    assert shown[0] == shown[1] == shown[2]


def test_no_more_rounds_are_shown_than_a_client_may_take_part_in() -> None:
    plan = plan_of(USER, a=replace(OWN, participations=1))
    account = account_of(plan)
    for _ in range(3):
        account.record(charge(plan))
    assert account.rounds_shown("a") == 1
    again = charge(plan, clients={"a": OWN.round_event.times(2)}, federation=None, again=True)
    account.record(again)
    assert account.rounds_shown("a") == 3, "each answer given again is a release of its own"


def test_an_answer_given_again_is_paid_for_and_is_no_round() -> None:
    plan = plan_of(a=OWN, b=OWN)
    account = account_of(plan)
    account.record(charge(plan, "a", "b"))
    account.record(charge(plan, clients={"a": OWN.round_event}, again=True))
    assert (account.rounds_shown("a"), account.rounds_shown("b")) == (2, 1)
    assert account.epsilons()["sample"] == pytest.approx(epsilon(OWN.round_event, 2))


def test_earlier_phases_count_and_so_does_who_has_left() -> None:
    first, second = plan_of(a=OWN, b=WEAK, never=WEAK), plan_of(a=OWN)
    account = account_of(second, {0: first})
    assert account.everybody == ["a"], "who never took part has nothing to lose"
    account.record(charge(first, "a", "b"))
    account.record(charge(second, "a", phase=1))
    assert account.everybody == ["a", "b"]
    assert account.phases == 2
    assert account.last_plan("b") == WEAK
    assert account.all_rounds_shown("a") == 2
    assert account.epsilons()["sample"] == pytest.approx(epsilon(WEAK.round_event))


def test_what_was_spent_before_leaves_fewer_rounds() -> None:
    plan = plan_of(a=OWN)
    target = epsilon(OWN.round_event, 3)
    fresh = account_of(plan, sample_epsilon=target)
    assert fresh.fits("a", 3)
    assert not fresh.fits("a", 4)
    later = account_of(plan, {0: plan}, sample_epsilon=target)
    later.record(charge(plan, "a"))
    assert later.fits("a", 2)
    assert not later.fits("a", 3)


def test_the_federation_has_a_budget_of_its_own() -> None:
    plan = plan_of(USER, a=OWN)
    account = account_of(plan, user_epsilon=epsilon(USER, 2))
    assert account.fits(None, 2)
    assert not account.fits(None, 3)
    assert account.fits("a", 10**6), "no target was given for records"


def test_a_plan_for_more_rounds_ends_where_the_rounds_do_and_at_most_at_the_target() -> None:
    plan = plan_of(USER, a=OWN)
    account = account_of(plan)
    account.record(charge(plan, "a"))
    planned = account.planned_epsilons(4)
    assert planned["sample"] == pytest.approx(epsilon(OWN.round_event, 5))
    assert planned["user"] == pytest.approx(epsilon(USER, 5))
    assert account.planned_epsilons(0) == pytest.approx(account.published_epsilons())
    target = epsilon(OWN.round_event, 2)
    limited = account_of(plan_of(a=OWN), sample_epsilon=target)
    assert limited.planned_epsilons(9)["sample"] == pytest.approx(target)


def test_what_is_spent_stays_spent_though_a_target_is_lower() -> None:
    plan = plan_of(a=OWN)
    account = account_of(plan, {0: plan}, sample_epsilon=0.01)
    account.record(charge(plan, "a"))
    assert account.planned_epsilons(1)["sample"] == pytest.approx(epsilon(OWN.round_event))


def test_one_round_alone_costs_what_the_worst_client_pays() -> None:
    account = account_of(plan_of(USER, a=OWN, b=WEAK))
    assert account.epsilon_of_one_round("record") == pytest.approx(epsilon(WEAK.round_event))
    assert account.epsilon_of_one_round("client") == pytest.approx(epsilon(USER))
    assert account_of(plan_of(a=OWN)).epsilon_of_one_round("client") == 0.0


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
