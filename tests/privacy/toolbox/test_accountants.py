"""Expenditures compose as the theorems say; steps are counted by the same engine."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_fedmed.privacy import ExpenditureAccountant, StepAccountant, get_privacy_spent


def filled(pairs, **more):
    accountant = ExpenditureAccountant(**more)
    for i, (epsilon, delta) in enumerate(pairs):
        accountant.record_expenditure(epsilon=epsilon, delta=delta, round_num=i + 1)
    return accountant


def test_advanced_composition_has_its_second_term():
    accountant = filled([(1.0, 0.0)] * 10, slack_delta=1e-5)
    epsilon, delta = accountant.get_total_privacy("advanced")
    first = math.sqrt(2 * 10 * math.log(1e5))
    assert epsilon == pytest.approx(first + 10 * math.expm1(1.0))
    assert delta == 1e-5
    assert accountant.get_total_privacy() == (10.0, 0.0)


def test_advanced_wins_for_many_small_releases():
    accountant = filled([(0.01, 1e-9)] * 10_000, slack_delta=1e-6)
    epsilon, delta = accountant.get_total_privacy()
    assert epsilon == accountant.get_total_privacy("advanced")[0] < 10.0
    assert accountant.get_total_privacy("basic")[0] == pytest.approx(100.0)
    assert delta == pytest.approx(1e-5 + 1e-6)


@given(st.lists(st.tuples(st.floats(0, 1000), st.floats(0, 0.1)), max_size=20))
def test_the_best_is_never_above_basic_and_order_free(pairs):
    one, two = filled(pairs), filled(pairs[::-1])
    assert one.get_total_privacy() == two.get_total_privacy()
    assert one.get_total_privacy()[0] <= one.get_total_privacy("basic")[0]
    assert one.get_total_privacy()[1] <= 1.0


def test_report():
    accountant = ExpenditureAccountant(target_epsilon=1.0)
    accountant.record_expenditure(epsilon=0.75, delta=1e-6, round_num=2, description="mean age")
    accountant.record_expenditure(epsilon=0.5, delta=0.0, round_num=1)
    assert accountant.get_report() == {
        "total_epsilon": 1.25,
        "total_delta": 1e-6,
        "num_expenditures": 2,
        "target_epsilon": 1.0,
        "remaining_budget": 0.0,
        "budget_exceeded": True,
        "expenditures_by_round": {
            "round_1": [{"epsilon": 0.5, "delta": 0.0, "description": ""}],
            "round_2": [{"epsilon": 0.75, "delta": 1e-6, "description": "mean age"}],
        },
    }
    assert not accountant.check_budget()


def test_without_a_target_or_an_expenditure():
    accountant = ExpenditureAccountant()
    assert accountant.check_budget()
    assert accountant.get_remaining_budget() is None
    assert accountant.get_total_privacy() == (0.0, 0.0)


@pytest.mark.parametrize(
    ("field", "value"),
    [("epsilon", -0.1), ("epsilon", math.nan), ("delta", 1.0), ("delta", -1.0), ("round_num", 1.5)],
)
def test_bad_expenditures_are_refused_and_not_recorded(field, value):
    accountant = ExpenditureAccountant()
    arguments = {"epsilon": 1.0, "delta": 0.0, "round_num": 1, field: value}
    with pytest.raises((TypeError, ValueError), match=field):
        accountant.record_expenditure(**arguments)
    assert accountant.get_report()["num_expenditures"] == 0


def make(**more):
    arguments = {"noise_multiplier": 1.0, "sample_rate": 0.01, "delta": 1e-5, "max_epsilon": 2.0}
    return StepAccountant(**{**arguments, **more})


def test_it_is_a_face_of_the_same_engine():
    accountant = make()
    assert accountant.get_epsilon() == 0.0
    assert accountant.event is None
    accountant.step(300)
    accountant.step()
    expected = get_privacy_spent(noise_multiplier=1.0, sample_rate=0.01, steps=301, delta=1e-5)
    assert accountant.get_epsilon() == expected
    assert accountant.event.count == accountant.steps == 301


@pytest.mark.parametrize("method", ["rdp", "pld"])
def test_the_estimated_steps_fit_and_one_more_does_not(method):
    accountant = make(method=method)
    accountant.step(100)
    left = accountant.estimate_steps_to_budget()
    accountant.step(left)
    assert not accountant.is_budget_exceeded()
    assert 0.0 <= accountant.remaining_budget() < 0.01
    assert accountant.estimate_steps_to_budget() == 0
    accountant.step()
    assert accountant.is_budget_exceeded()
    assert accountant.remaining_budget() == 0.0


def test_without_a_budget():
    accountant = make(max_epsilon=None)
    accountant.step(10**6)
    assert not accountant.is_budget_exceeded()
    with pytest.raises(ValueError, match="max_epsilon"):
        accountant.remaining_budget()


@pytest.mark.parametrize("steps", [0, -1, 1.5, True, "3"])
def test_bad_steps_are_refused(steps):
    with pytest.raises((TypeError, ValueError), match="num_steps"):
        make().step(steps)
