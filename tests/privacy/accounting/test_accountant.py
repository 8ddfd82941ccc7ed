"""PrivacyAccountant: the worst client, once per round, in any order, before it is spent."""

import copy
import json
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_fedmed.privacy import History, PrivacyAccountant, PrivacyEvent, get_privacy_spent


def record_event(sigma=1.0, q=0.1, count=1, **more):
    return PrivacyEvent.poisson(
        unit="record", noise_multiplier=sigma, sample_rate=q, count=count, **more
    )


def user_event(sigma=1.0, q=0.1, count=1, **more):
    return PrivacyEvent.poisson(
        unit="client", noise_multiplier=sigma, sample_rate=q, count=count, **more
    )


def spent(sigma, q, steps, delta=1e-5, **more):
    return get_privacy_spent(
        noise_multiplier=sigma, sample_rate=q, steps=steps, delta=delta, **more
    )


def test_sample_epsilon_is_the_worst_clients_not_the_sum_nor_the_mean():
    accountant = PrivacyAccountant(1e-5)
    for round_num in range(1, 11):
        for i in range(9):
            accountant.record_round(
                round_num,
                client=f"site-{i}",
                noise_multiplier_sample=1.0,
                sample_rate_sample=0.1,
                steps_sample=5,
            )
        accountant.record_round(
            round_num,
            client="small",
            noise_multiplier_sample=1.0,
            sample_rate_sample=0.5,
            steps_sample=1,
        )
    worst = max(spent(1.0, 0.1, 50), spent(1.0, 0.5, 10))
    assert accountant.get_cumulative_sample_epsilon() == worst
    assert accountant.get_cumulative_sample_epsilon() == spent(1.0, 0.5, 10)
    assert accountant.get_summary()["worst_client"] == "small"
    assert accountant.per_client()["site-3"]["history"] == [(1.0, 0.1, 50)]
    assert accountant.get_cumulative_user_epsilon() == 0.0


def test_epsilon_grows_over_rounds_and_never_restarts():
    accountant = PrivacyAccountant(1e-5)
    seen = []
    for round_num in range(20):
        accountant.record_round(
            round_num, noise_multiplier_sample=1.0, sample_rate_sample=0.01, steps_sample=10
        )
        seen.append(accountant.get_cumulative_sample_epsilon())
    assert seen == sorted(seen)
    assert len(set(seen)) == 20
    assert seen[-1] == spent(1.0, 0.01, 200)


def test_user_event_counts_once_per_round_however_many_clients_report_it():
    accountant = PrivacyAccountant(1e-5)
    for round_num in (1, 2, 3):
        for client in "abcde":
            accountant.record_round(
                round_num,
                client=client,
                noise_multiplier_user=1.0,
                sample_rate_user=0.2,
                steps_user=1,
            )
    assert accountant.get_cumulative_user_epsilon() == spent(1.0, 0.2, 3)


def test_a_repeated_round_is_charged_again_also_after_loading():
    arguments = {"noise_multiplier_user": 1.0, "sample_rate_user": 0.2, "steps_user": 1}
    accountant = PrivacyAccountant(1e-5)
    for client in "ab":
        accountant.record_round(1, client=client, **arguments)
    reloaded = PrivacyAccountant(0.5)
    reloaded.load_state_dict(json.loads(json.dumps(accountant.state_dict())))
    reloaded.record_round(1, client="c", **arguments)
    assert reloaded.get_cumulative_user_epsilon() == spent(1.0, 0.2, 1)
    reloaded.record_round(1, client="a", **arguments)
    assert reloaded.get_cumulative_user_epsilon() == spent(1.0, 0.2, 2)


def test_a_round_with_two_different_user_events_is_charged_for_both():
    accountant = PrivacyAccountant(1e-5)
    for client, sigma in (("a", 1.0), ("b", 2.0)):
        accountant.record_round(
            1, client=client, noise_multiplier_user=sigma, sample_rate_user=0.2, steps_user=1
        )
    assert accountant.get_history("client") == [(1.0, 0.2, 1), (2.0, 0.2, 1)]


def test_half_given_arguments_are_an_error_not_a_free_round():
    accountant = PrivacyAccountant(1e-5)
    with pytest.raises(ValueError, match="steps_sample not given"):
        accountant.record_round(1, noise_multiplier_sample=1.0, sample_rate_sample=0.1)
    accountant.record_round(1)
    assert accountant.get_total_epsilon() == 0.0


def test_an_event_for_every_client_is_in_each_clients_epsilon():
    accountant = PrivacyAccountant(1e-5)
    accountant.record(record_event(q=0.1, count=10), client="a")
    accountant.record(record_event(q=0.1, count=5))
    assert accountant.get_cumulative_sample_epsilon() == spent(1.0, 0.1, 15)
    assert accountant.get_epsilon(unit="record", client="a") == spent(1.0, 0.1, 15)
    assert accountant.get_epsilon(unit="record", client="unknown") == spent(1.0, 0.1, 5)


def test_client_1_and_client_text_1_are_one_client():
    accountant = PrivacyAccountant(1e-5)
    accountant.record(record_event(), client=1)
    accountant.record(record_event(), client="1")
    assert accountant.get_history("record", "1") == [(1.0, 0.1, 2)]


@pytest.mark.parametrize("client", ["", "*", True, 1.5, b"a"])
def test_bad_client_names_are_refused(client):
    with pytest.raises((TypeError, ValueError), match="client"):
        PrivacyAccountant(1e-5).record(record_event(), client=client)


def test_client_level_events_belong_to_the_federation():
    with pytest.raises(ValueError, match="belongs to the federation"):
        PrivacyAccountant(1e-5).record(user_event(), client="a")


def test_one_epsilon_needs_one_neighbouring_relation():
    accountant = PrivacyAccountant(1e-5, target_epsilon=1.0)
    accountant.record(user_event())
    other = PrivacyEvent.full(unit="client", noise_multiplier=1.0, adjacency="replace_one")
    before = accountant.state_dict()
    with pytest.raises(ValueError, match="neighbouring relation"):
        accountant.record(other)
    with pytest.raises(ValueError, match="does not compose"):
        accountant.would_exceed(other)
    assert accountant.state_dict() == before


def test_the_conservative_sum_is_named_and_adds_both_deltas():
    accountant = PrivacyAccountant(1e-5, user_target_delta=1e-3)
    accountant.record(record_event(), client="a")
    accountant.record(user_event())
    summary = accountant.get_summary()
    assert (
        accountant.get_total_epsilon()
        == summary["record"]["epsilon"] + (summary["client"]["epsilon"])
    )
    assert summary["conservative_sum"] == {
        "epsilon": accountant.get_total_epsilon(),
        "delta": 1e-5 + 1e-3,
    }
    assert summary["client"]["epsilon"] == spent(1.0, 0.1, 1, delta=1e-3)
    json.dumps(summary, allow_nan=False)


@pytest.mark.parametrize("method", ["rdp", "pld"])
def test_would_exceed_and_remaining_rounds_agree_with_spending(method):
    accountant = PrivacyAccountant(1e-5, target_epsilon=3.0, method=method)
    plan = record_event(sigma=1.0, q=0.02, count=50)
    left = accountant.remaining_rounds(plan, "a")
    assert left > 3
    for _ in range(left):
        assert not accountant.would_exceed(plan, "a")
        accountant.record(plan, "a")
    assert accountant.would_exceed(plan, "a")
    assert accountant.remaining_rounds(plan, "a") == 0
    assert accountant.get_cumulative_sample_epsilon() <= 3.0
    accountant.record(plan, "a")
    assert accountant.get_cumulative_sample_epsilon() > 3.0
    assert accountant.get_summary()["record"]["budget_exceeded"]


def test_pld_of_many_clients_is_the_maximum_over_all_of_them():
    accountant = PrivacyAccountant(1e-5, method="pld")
    plans = [(1.0, 0.02, 40), (1.0, 0.02, 40), (2.0, 0.3, 9), (0.8, 0.01, 60), (3.0, 1.0, 2)]
    for i, (sigma, q, steps) in enumerate(plans):
        accountant.record(record_event(sigma, q, steps), client=i)
    every = [spent(*plan, accountant="pld") for plan in plans]
    assert accountant.get_cumulative_sample_epsilon() == max(every)
    assert [c["epsilon"] for c in accountant.per_client().values()] == every


def test_the_worst_client_by_pld_may_not_be_the_worst_by_rdp():
    loose, tight = (1.185, 0.0277, 1), (4.0, 0.0586, 250)
    assert spent(*loose, delta=1e-6) > spent(*tight, delta=1e-6)
    accountant = PrivacyAccountant(1e-6, method="pld")
    accountant.record(record_event(*loose), client="loose")
    accountant.record(record_event(*tight), client="tight")
    expected = spent(*tight, delta=1e-6, accountant="pld")
    assert expected > spent(*loose, delta=1e-6, accountant="pld")
    assert accountant.get_cumulative_sample_epsilon() == expected


def test_asking_spends_nothing():
    accountant = PrivacyAccountant(1e-5, target_epsilon=3.0)
    accountant.record(record_event(), "a")
    before = copy.deepcopy(accountant.state_dict())
    accountant.would_exceed(record_event(q=0.9, count=1000), "a")
    accountant.remaining_rounds([record_event(), user_event()])
    accountant.get_summary()
    accountant.per_client()
    assert accountant.state_dict() == before


def test_plans_by_client_stop_at_the_first_client_that_is_out():
    accountant = PrivacyAccountant(1e-5, target_epsilon=3.0)
    plan = {"a": record_event(q=0.01, count=10), "b": [record_event(q=0.05, count=10)]}
    alone = accountant.remaining_rounds(plan["b"], "b")
    assert accountant.remaining_rounds(plan) == alone
    assert accountant.would_exceed(plan, rounds=alone + 1)
    assert not accountant.would_exceed(plan, rounds=alone)


def test_a_plan_for_every_client_is_checked_against_the_worst_of_them():
    accountant = PrivacyAccountant(1e-5, target_epsilon=3.0)
    plan = record_event(q=0.02, count=50)
    fresh = accountant.remaining_rounds(plan)
    accountant.record(plan.times(5), "a")
    accountant.record(plan.times(2), "b")
    assert accountant.remaining_rounds(plan) == fresh - 5
    assert accountant.remaining_rounds(plan, "b") == fresh - 2


def test_budgets_of_the_two_levels_are_independent():
    accountant = PrivacyAccountant(1e-5, target_epsilon=100.0, user_target_epsilon=1.0)
    assert not accountant.would_exceed(record_event(count=100))
    assert accountant.would_exceed([record_event(), user_event(q=1.0)])


def test_a_plan_that_costs_next_to_nothing_ends_at_a_limit_not_in_an_error():
    accountant = PrivacyAccountant(1e-5, target_epsilon=100.0)
    assert accountant.remaining_rounds(record_event(1000.0, 1e-9, count=10**6)) > 10**8
    with pytest.raises(ValueError, match="needs a budget"):
        accountant.remaining_rounds([])


def test_a_budget_of_one_level_alone_is_enforced():
    accountant = PrivacyAccountant(1e-5, user_target_epsilon=1.0)
    assert accountant.would_exceed(user_event(q=1.0))
    assert not accountant.would_exceed(record_event(q=1.0))
    assert accountant.remaining_rounds([record_event(q=1.0), user_event(sigma=5.0)]) > 1


def test_without_a_budget_nothing_exceeds_and_nothing_remains_to_be_counted():
    accountant = PrivacyAccountant(1e-5)
    assert not accountant.would_exceed(record_event(count=10**9))
    with pytest.raises(ValueError, match="needs a budget"):
        accountant.remaining_rounds(record_event())
    with pytest.raises(ValueError, match="no event"):
        accountant.would_exceed([])


def test_public_noise_travels_into_the_report_and_through_a_reload():
    accountant = PrivacyAccountant(1e-5)
    accountant.record(record_event(), "a")
    assert accountant.is_private
    accountant.record(record_event(is_private=False), "a")
    reloaded = PrivacyAccountant(1e-5)
    reloaded.load_state_dict(accountant.state_dict())
    summary = reloaded.get_summary()
    assert summary["is_private"] is False
    assert summary["note"] == "not private: noise seed is public"
    assert reloaded.get_history("record", "a") == [(1.0, 0.1, 2)]


def test_exact_and_pld_methods_report_and_enforce():
    exact = PrivacyAccountant(1e-5, method="exact")
    exact.record(PrivacyEvent.full(unit="client", noise_multiplier=2.0, count=50))
    assert exact.get_cumulative_user_epsilon() == pytest.approx(20.6755, abs=1e-4)
    summary = exact.get_summary(compare=True)
    assert summary["client"]["epsilon_rdp"] == pytest.approx(22.0199, abs=1e-3)
    exact.record(user_event())
    with pytest.raises(ValueError, match="needs q = 1"):
        exact.get_cumulative_user_epsilon()


def test_fixed_size_cohorts_by_every_method():
    event = PrivacyEvent.fixed_size(
        unit="client",
        noise_multiplier=4.0,
        cohort_size=10,
        population=1000,
        adjacency="replace_one",
        count=100,
    )
    history = History([event])
    unamplified = spent(2.0, 1.0, 100, accountant="exact")
    assert history.epsilon(delta=1e-5) < unamplified
    assert history.epsilon(delta=1e-5, method="pld") == history.epsilon(delta=1e-5)
    assert history.epsilon(delta=1e-5) > spent(2.0, 0.01, 100)
    zero_out = PrivacyEvent.fixed_size(
        unit="client",
        noise_multiplier=4.0,
        cohort_size=10,
        population=1000,
        adjacency="zero_out",
        count=100,
    )
    assert History([zero_out]).epsilon(delta=1e-5) == spent(4.0, 1.0, 100)


CALLS = st.lists(
    st.tuples(
        st.integers(1, 4),
        st.sampled_from(["a", "b", "c"]),
        st.floats(0.5, 5.0),
        st.floats(0.001, 1.0),
        st.integers(1, 50),
    ),
    min_size=1,
    max_size=12,
)


def replay(calls):
    accountant = PrivacyAccountant(1e-5)
    for round_num, client, sigma, q, steps in calls:
        accountant.record_round(
            round_num,
            client=client,
            noise_multiplier_sample=sigma,
            sample_rate_sample=q,
            steps_sample=steps,
            noise_multiplier_user=2.0,
            sample_rate_user=0.1,
            steps_user=1,
        )
    return accountant


@given(calls=CALLS, seed=st.integers(0, 99))
def test_epsilon_and_state_are_bit_identical_in_any_order_and_after_reload(calls, seed):
    shuffled = list(calls)
    random.Random(seed).shuffle(shuffled)
    one, two, three = replay(calls), replay(shuffled), PrivacyAccountant(0.1)
    three.load_state_dict(json.loads(json.dumps(two.state_dict())))
    assert json.dumps(one.state_dict()) == json.dumps(two.state_dict())
    assert json.dumps(three.state_dict()) == json.dumps(two.state_dict())
    for accountant in (two, three):
        assert accountant.get_cumulative_sample_epsilon() == one.get_cumulative_sample_epsilon()
        assert accountant.get_cumulative_user_epsilon() == one.get_cumulative_user_epsilon()
        assert accountant.per_client() == one.per_client()


@given(
    sigma=st.floats(0.3, 30.0),
    q=st.floats(1e-5, 1.0),
    steps=st.integers(1, 10**6),
    delta=st.floats(1e-12, 1e-2),
)
@settings(max_examples=80)
def test_epsilon_is_monotone_in_everything(sigma, q, steps, delta):
    epsilon = spent(sigma, q, steps, delta)
    slack = 1 + 1e-9
    assert 0 <= epsilon < math.inf
    assert spent(sigma * 1.01, q, steps, delta) <= epsilon * slack
    assert spent(sigma, q * 0.99, steps, delta) <= epsilon * slack
    assert spent(sigma, q, steps + 1, delta) * slack >= epsilon
    assert spent(sigma, q, steps, min(delta * 1.1, 0.5)) <= epsilon * slack


@pytest.mark.parametrize("sigma", [0.3, 1.0, 50.0])
@pytest.mark.parametrize("q", [1e-8, 0.01, 1.0])
@pytest.mark.parametrize("steps", [1, 10**6])
@pytest.mark.parametrize("delta", [1e-12, 1e-5])
def test_corners_are_finite_and_ordered(sigma, q, steps, delta):
    rdp = spent(sigma, q, steps, delta)
    pld = spent(sigma, q, steps, delta, accountant="pld") if q in (1.0, 0.01) else 0.0
    assert 0.0 <= pld <= rdp < math.inf


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan, "1e-5", True, None])
def test_bad_delta_is_refused(delta):
    with pytest.raises((TypeError, ValueError), match="target_delta"):
        PrivacyAccountant(delta)
    accountant = PrivacyAccountant(1e-5)
    if delta is not None:
        with pytest.raises((TypeError, ValueError), match="delta"):
            accountant.get_epsilon(unit="record", delta=delta)
