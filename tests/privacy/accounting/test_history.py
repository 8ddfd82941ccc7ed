"""The registry of accountants: one from outside calibrates and enforces like the built-in ones."""

import math

import pytest

from dp_fedmed.privacy import (
    History,
    PrivacyAccountant,
    PrivacyEvent,
    calibrate,
    compute_max_rounds,
    compute_noise_multiplier,
    gaussian_epsilon,
)
from dp_fedmed.privacy.accounting.history import ACCOUNTANTS, quickest_first, worst_epsilon


def careful(steps, delta):
    """Twice the closed form, without amplification: above RDP, so RDP may not speak for it."""
    precision = math.fsum(count / sigma**2 for (_, sigma, _), count in steps.items())
    return 2.0 * gaussian_epsilon(noise_multiplier=precision**-0.5, delta=delta)


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(ACCOUNTANTS, "careful", careful)


def step(sigma, q, count=1):
    return PrivacyEvent.poisson(unit="record", noise_multiplier=sigma, sample_rate=q, count=count)


@pytest.mark.parametrize("q", [0.2, 1.0])
def test_an_accountant_from_outside_calibrates(q):
    plan = {"target_epsilon": 8.0, "target_delta": 1e-5, "accountant": "careful"}
    sigma = compute_noise_multiplier(sample_rate=q, steps_per_round=2, num_rounds=10, **plan)
    again = calibrate(lambda s: [step(s, q, 20)], **plan)
    assert sigma == pytest.approx(again, rel=1e-3)
    assert 7.98 < History([step(sigma, q, 20)]).epsilon(delta=1e-5, method="careful") <= 8.0
    most = compute_max_rounds(noise_multiplier=sigma, sample_rate=q, steps_per_round=2, **plan)
    assert most == 10


def test_an_accountant_from_outside_enforces_and_its_state_is_read_back():
    accountant = PrivacyAccountant(1e-5, target_epsilon=8.0, method="careful")
    plan = step(3.0, 0.2)
    rounds = accountant.remaining_rounds(plan)
    accountant.record(plan.times(rounds))
    assert accountant.would_exceed(plan)
    assert accountant.get_summary()["record"]["epsilon"] <= 8.0
    assert PrivacyAccountant(1e-5, target_epsilon=8.0).remaining_rounds(plan) > 5 * rounds
    loaded = PrivacyAccountant(1e-5)
    loaded.load_state_dict(accountant.state_dict())
    assert loaded.method == "careful"
    assert loaded.would_exceed(plan)


def test_rdp_stands_in_only_for_accountants_that_it_bounds():
    assert quickest_first("tight") == ("rdp", "tight")
    assert quickest_first("rdp") == ("rdp",)
    assert quickest_first("careful") == ("careful",)
    # By RDP the first is the worse of the two, by this accountant the second.
    ones = [History([step(1.0, 0.9)]), History([step(1.0, 0.01, 2)])]
    assert worst_epsilon(ones, delta=1e-5, method="careful") == ones[1].epsilon(
        delta=1e-5, method="careful"
    )


def test_a_name_that_is_not_registered_is_refused_with_those_that_are():
    with pytest.raises(ValueError, match="'tight', 'careful', got 'moments'"):
        History().epsilon(delta=1e-5, method="moments")
