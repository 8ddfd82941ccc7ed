"""A guarantee as odds: a bound that no test beats, and that one test reaches."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from dp_fedmed.privacy import gaussian_epsilon, guess_probability


@pytest.mark.parametrize(
    ("epsilon", "delta", "expected"),
    [
        (0.0, 0.0, 0.5),
        (1.0, 0.0, math.e / (1 + math.e)),
        (3.0, 1e-5, (math.exp(3) + 1e-5) / (1 + math.exp(3))),
        (0.0, 0.2, 0.6),
        (math.inf, 1e-5, 1.0),
        (5000.0, 0.0, 1.0),
    ],
)
def test_even_odds_have_a_closed_form(epsilon: float, delta: float, expected: float) -> None:
    assert guess_probability(epsilon=epsilon, delta=delta) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("prior", [0.5, 0.1, 0.9])
def test_the_best_mechanism_of_a_guarantee_reaches_the_bound(prior: float) -> None:
    """Randomised response that tells the truth with probability δ is as bad as (ε, δ) allows."""
    epsilon, delta = 1.2, 0.05
    truth = (1 - delta) * math.exp(epsilon) / (1 + math.exp(epsilon))
    present = np.array([delta, 0.0, truth, 1 - delta - truth])  # of four answers
    absent = np.array([0.0, delta, 1 - delta - truth, truth])
    best_guess = float(np.maximum(prior * present, (1 - prior) * absent).sum())
    bound = guess_probability(epsilon=epsilon, delta=delta, prior=prior)
    assert best_guess <= bound + 1e-12
    if prior == 0.5:
        assert best_guess == pytest.approx(bound)


@pytest.mark.parametrize("sigma", [0.4, 1.0, 3.0])
def test_no_threshold_beats_it_for_the_gaussian_mechanism(sigma: float) -> None:
    thresholds = np.linspace(-10, 11, 2001)
    detected, wrong = norm.sf(thresholds, 1, sigma), norm.sf(thresholds, 0, sigma)
    for delta in (1e-6, 1e-3, 0.1):
        epsilon = gaussian_epsilon(noise_multiplier=sigma, delta=delta)
        for prior in (0.5, 0.2):
            success = prior * detected + (1 - prior) * (1 - wrong)
            bound = guess_probability(epsilon=epsilon, delta=delta, prior=prior)
            assert success.max() <= bound


def test_it_never_falls_below_guessing_without_looking() -> None:
    for prior in (0.0, 0.01, 0.5, 0.99, 1.0):
        assert guess_probability(epsilon=0.1, delta=1e-5, prior=prior) >= max(prior, 1 - prior)


@pytest.mark.parametrize(
    "given",
    [
        {"epsilon": -1.0, "delta": 1e-5},
        {"epsilon": math.nan, "delta": 1e-5},
        {"epsilon": -math.inf, "delta": 1e-5},
        {"epsilon": 1.0, "delta": 1.0},
        {"epsilon": 1.0, "delta": math.nan},
        {"epsilon": 1.0, "delta": 1e-5, "prior": 1.5},
        {"epsilon": 1.0, "delta": 1e-5, "prior": math.nan},
    ],
)
def test_what_is_no_guarantee_is_refused(given: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must"):
        guess_probability(**given)
