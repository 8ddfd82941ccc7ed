"""Calibration never exceeds the target and wastes less than a thousandth."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dp_fedmed.privacy import (
    History,
    PrivacyEvent,
    calibrate,
    compute_epsilon,
    compute_max_rounds,
    compute_max_sample_rate,
    compute_noise_multiplier,
    get_privacy_spent,
)


@given(
    target=st.floats(0.1, 30.0),
    delta=st.sampled_from([1e-3, 1e-5, 1e-9]),
    q=st.one_of(st.floats(1e-3, 0.9), st.just(1.0)),
    rounds=st.integers(1, 2000),
)
@settings(max_examples=60)
def test_rdp_sigma_keeps_the_target_and_is_nearly_the_smallest(target, delta, q, rounds):
    plan = {"target_delta": delta, "sample_rate": q, "steps_per_round": 2, "num_rounds": rounds}
    sigma = compute_noise_multiplier(target_epsilon=target, **plan)
    assert compute_epsilon(noise_multiplier=sigma, **plan) <= target
    assert compute_epsilon(noise_multiplier=sigma * 0.999, **plan) > target


@given(target=st.floats(0.3, 10.0), q=st.floats(0.005, 0.5), rounds=st.integers(1, 300))
@settings(max_examples=6)
def test_pld_sigma_keeps_the_target_and_is_below_the_rdp_one(target, q, rounds):
    plan = {
        "target_delta": 1e-5,
        "sample_rate": q,
        "steps_per_round": 1,
        "num_rounds": rounds,
    }
    sigma = compute_noise_multiplier(target_epsilon=target, accountant="pld", **plan)
    assert compute_epsilon(noise_multiplier=sigma, accountant="pld", **plan) <= target
    assert sigma <= compute_noise_multiplier(target_epsilon=target, **plan) * 1.001


@pytest.mark.parametrize("accountant", ["rdp", "pld", "exact"])
def test_full_batch_calibration_keeps_the_target(accountant):
    plan = {
        "target_delta": 1e-6,
        "sample_rate": 1.0,
        "steps_per_round": 3,
        "num_rounds": 7,
        "accountant": accountant,
    }
    for target in (0.05, 1.0, 8.0, 100.0):
        sigma = compute_noise_multiplier(target_epsilon=target, **plan)
        assert compute_epsilon(noise_multiplier=sigma, **plan) <= target
        assert compute_epsilon(noise_multiplier=sigma * 0.9999, **plan) > target


def test_a_target_out_of_reach_says_what_could_be_reached():
    plan = {
        "target_delta": 1e-5,
        "sample_rate": 0.5,
        "steps_per_round": 10,
        "num_rounds": 1000,
        "max_noise_multiplier": 10.0,
    }
    with pytest.raises(ValueError, match="cannot be met") as info:
        compute_noise_multiplier(target_epsilon=1.0, **plan)
    text = str(info.value)
    assert "target_epsilon of at least" in text
    assert "rounds" in text
    assert "sample_rate of 0.05" in text or "sample_rate of 0.005" in text
    rounds = int(text.split("at most ")[1].split(" rounds")[0])
    fits = compute_epsilon(
        noise_multiplier=10.0,
        target_delta=1e-5,
        sample_rate=0.5,
        steps_per_round=10,
        num_rounds=rounds,
    )
    assert fits <= 1.0
    reachable = float(text.split("at least ")[1].split(";")[0])
    sigma = compute_noise_multiplier(target_epsilon=reachable, **plan)
    assert sigma <= 10.0


def test_rdp_has_a_floor_that_pld_has_not():
    plan = {"target_delta": 1e-9, "sample_rate": 0.1, "steps_per_round": 1, "num_rounds": 1}
    with pytest.raises(ValueError, match="accountant='tight'"):
        compute_noise_multiplier(target_epsilon=0.005, **plan)
    sigma = compute_noise_multiplier(target_epsilon=0.005, accountant="pld", **plan)
    assert compute_epsilon(noise_multiplier=sigma, accountant="pld", **plan) <= 0.005


def test_a_delta_that_excuses_everything_is_refused():
    with pytest.raises(ValueError, match="smaller δ"):
        compute_noise_multiplier(
            target_epsilon=1.0,
            target_delta=0.01,
            sample_rate=1e-4,
            steps_per_round=1,
            num_rounds=10,
            accountant="pld",
        )


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_max_rounds_fit_and_one_more_does_not(accountant):
    common = {
        "noise_multiplier": 1.5,
        "target_delta": 1e-5,
        "sample_rate": 0.05,
        "steps_per_round": 4,
        "accountant": accountant,
    }
    rounds = compute_max_rounds(target_epsilon=4.0, **common)
    assert rounds > 1
    assert compute_epsilon(num_rounds=rounds, **common) <= 4.0
    assert compute_epsilon(num_rounds=rounds + 1, **common) > 4.0
    assert compute_max_rounds(target_epsilon=1e-4, **common) == 0


def test_max_sample_rate_fits_and_a_larger_one_does_not():
    common = {
        "noise_multiplier": 1.5,
        "target_delta": 1e-5,
        "steps_per_round": 4,
        "num_rounds": 50,
    }
    q = compute_max_sample_rate(target_epsilon=4.0, **common)
    assert compute_epsilon(sample_rate=q, **common) <= 4.0
    assert compute_epsilon(sample_rate=q * 1.001, **common) > 4.0
    assert compute_max_sample_rate(target_epsilon=1e4, **common) == 1.0


def test_calibration_on_top_of_what_was_spent():
    old = PrivacyEvent.poisson(unit="record", noise_multiplier=1.0, sample_rate=0.01, count=500)
    spent = History([old])

    def events(sigma):
        return [
            PrivacyEvent.poisson(unit="record", noise_multiplier=sigma, sample_rate=0.02, count=500)
        ]

    sigma = calibrate(events, target_epsilon=3.0, target_delta=1e-5, spent=spent)
    after = spent.plus(History(events(sigma))).epsilon(delta=1e-5)
    assert 2.99 < after <= 3.0
    assert spent.rows() == [(1.0, 0.01, 500)]
    with pytest.raises(ValueError, match="was spent before"):
        calibrate(events, target_epsilon=1.0, target_delta=1e-5, spent=spent)


GOOD = {
    "target_epsilon": 1.0,
    "target_delta": 1e-5,
    "sample_rate": 0.1,
    "steps_per_round": 1,
    "num_rounds": 10,
}


@pytest.mark.parametrize("name", sorted(GOOD))
@pytest.mark.parametrize("value", [math.nan, math.inf, 0, -1, True, "1", None])
def test_bad_arguments_are_refused_by_name(name, value):
    with pytest.raises((TypeError, ValueError), match=name):
        compute_noise_multiplier(**{**GOOD, name: value})


def test_arguments_that_could_be_swapped_are_keyword_only():
    with pytest.raises(TypeError, match="positional"):
        get_privacy_spent(1.0, 0.01, 10, 1e-5)


def test_exact_is_for_full_batches_only():
    with pytest.raises(ValueError, match="only for sample_rate=1"):
        compute_noise_multiplier(**GOOD, accountant="exact")
    with pytest.raises(ValueError, match="accountant must be one of"):
        compute_noise_multiplier(**GOOD, accountant="gdp")
