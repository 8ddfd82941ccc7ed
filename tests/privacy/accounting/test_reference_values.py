"""Our numbers against independent accountants; see reference_values.json for their origin."""

import json
import math
from pathlib import Path

import pytest

from dp_fedmed.privacy import (
    GaussianMechanism,
    History,
    PrivacyEvent,
    compose_advanced,
    compose_basic,
    compute_epsilon,
    compute_noise_multiplier,
    gaussian_epsilon,
)
from dp_fedmed.privacy.accounting.rdp import composed_epsilon

REFERENCE = json.loads((Path(__file__).parent / "reference_values.json").read_text())
HISTORIES = REFERENCE["sampled_gaussian"]
#: The file rounds ε to four decimals, σ to three.
ROUNDED = 5.1e-5


def history(case):
    return History(
        PrivacyEvent.poisson(unit="record", noise_multiplier=s, sample_rate=q, count=t)
        for s, q, t in case["segments"]
    )


@pytest.mark.parametrize("case", HISTORIES, ids=lambda c: c["id"])
def test_rdp_is_no_looser_than_opacus_and_no_tighter_than_pld(case):
    epsilon = history(case).epsilon(delta=case["delta"])
    assert epsilon <= case["opacus_rdp"] * (1 + 1e-6) + ROUNDED
    assert epsilon >= case["pld"] * (1 - 2e-3)


@pytest.mark.parametrize("case", HISTORIES, ids=lambda c: c["id"])
def test_pld_agrees_with_dp_accounting(case):
    epsilon = history(case).epsilon(delta=case["delta"], method="pld")
    assert epsilon == pytest.approx(case["pld"], rel=1e-3, abs=ROUNDED)


@pytest.mark.parametrize("case", REFERENCE["needs_large_orders"])
def test_small_epsilon_uses_orders_that_opacus_lacks(case):
    ours = history(case)
    assert ours.epsilon(delta=case["delta"]) == pytest.approx(case["rdp_optimum"], rel=5e-3)
    assert ours.epsilon(delta=case["delta"]) < 0.6 * case["opacus_rdp"]
    assert ours.epsilon(delta=case["delta"], method="pld") == pytest.approx(
        case["pld"], rel=1e-3, abs=ROUNDED
    )
    assert 64 < composed_epsilon(ours._counts, delta=case["delta"])[1] < 1024


CALIBRATIONS = [
    (case, method)
    for case in REFERENCE["calibration"]
    for method in ("rdp", "pld", "exact")
    if f"sigma_{method}" in case
]


@pytest.mark.parametrize(("case", "method"), CALIBRATIONS)
def test_calibrated_sigma_is_the_reference_one_and_keeps_the_target(case, method):
    expected = case[f"sigma_{method}"]
    plan = {
        "target_delta": case["delta"],
        "sample_rate": case["q"],
        "steps_per_round": 1,
        "num_rounds": case["T"],
        "accountant": method,
    }
    sigma = compute_noise_multiplier(target_epsilon=case["target_epsilon"], **plan)
    assert sigma == pytest.approx(expected, rel=1.2e-3)
    assert compute_epsilon(noise_multiplier=sigma, **plan) <= case["target_epsilon"]
    assert compute_epsilon(noise_multiplier=sigma * 0.999, **plan) > case["target_epsilon"]


GAUSSIAN = REFERENCE["gaussian_mechanism_sensitivity_1_delta_1e-5"]


@pytest.mark.parametrize(("epsilon", "sigma"), GAUSSIAN["analytic_sigma"].items())
def test_analytic_gaussian_sigma(epsilon, sigma):
    mechanism = GaussianMechanism(epsilon=float(epsilon), delta=1e-5, sensitivity=1.0)
    assert mechanism.sigma == pytest.approx(sigma, abs=6e-4)
    assert gaussian_epsilon(noise_multiplier=mechanism.sigma, delta=1e-5) <= float(epsilon)


@pytest.mark.parametrize(("epsilon", "sigma"), GAUSSIAN["classic_sigma"].items())
def test_classic_gaussian_sigma(epsilon, sigma):
    mechanism = GaussianMechanism(
        epsilon=float(epsilon),
        delta=1e-5,
        sensitivity=1.0,
        calibration="classic",
        allow_invalid=True,
    )
    assert mechanism.sigma == pytest.approx(sigma, abs=6e-6)


def test_classic_sigma_is_too_small_above_epsilon_8_42():
    def real_epsilon(epsilon):
        sigma = math.sqrt(2 * math.log(1.25 / 1e-5)) / epsilon
        return gaussian_epsilon(noise_multiplier=sigma, delta=1e-5)

    assert real_epsilon(8.41) < 8.41
    assert real_epsilon(8.43) > 8.43


def test_composition_references():
    expected = REFERENCE["composition"]
    ten = expected["ten_gaussian_releases_each_classic_epsilon_1"]
    sigma = GAUSSIAN["classic_sigma"]["1.0"]
    event = PrivacyEvent.full(unit="record", noise_multiplier=sigma, count=10)
    assert History([event]).epsilon(delta=1e-5, method="exact") == pytest.approx(
        ten["exact"], abs=6e-4
    )
    assert compose_basic([(1.0, 1e-5)] * 10)[0] == ten["basic"]
    advanced = expected["advanced_composition_eps_1_k_10_delta_prime_1e-5"]
    epsilon, delta = compose_advanced([(1.0, 0.0)] * 10, slack_delta=1e-5)
    assert epsilon == pytest.approx(advanced["correct"], abs=0.05)
    assert math.sqrt(2 * 10 * math.log(1e5)) == pytest.approx(
        advanced["without_second_term"], abs=0.05
    )
    assert delta == pytest.approx(1e-5)
