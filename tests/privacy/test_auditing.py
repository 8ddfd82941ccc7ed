"""The audit's mathematics: the paper's numbers, coverage, and guesses that are fixed beforehand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from dp_fedmed.privacy.auditing import (
    Guesses,
    count_correct,
    epsilon_lower_bound,
    gaussian_lower_bound,
    p_value,
    plan_guesses,
)


@pytest.mark.parametrize(
    ("canaries", "guesses", "correct", "delta", "published"),
    [
        (1000, 100, 75, 1e-4, 0.673),  # arXiv:2305.08846v1, appendix D
        (100_000, 1510, 1439, 1e-5, 2.675),  # the same, section 7
    ],
)
def test_the_papers_own_numbers(
    canaries: int, guesses: int, correct: int, delta: float, published: float
) -> None:
    found = epsilon_lower_bound(canaries=canaries, guesses=guesses, correct=correct, delta=delta)
    assert found == pytest.approx(published, abs=1e-3)


@pytest.mark.parametrize("guesses", [1, 10, 59, 337, 4000])
def test_all_guesses_right_without_delta_has_a_closed_form(guesses: int) -> None:
    expected = max(0.0, float(special.logit(0.05 ** (1 / guesses))))
    found = epsilon_lower_bound(canaries=5000, guesses=guesses, correct=guesses, delta=0.0)
    assert found == pytest.approx(expected, abs=1e-6)


def theorem(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
    """Theorem 5.2, term by term."""

    def f(at: int) -> float:
        q = math.exp(epsilon) / (1 + math.exp(epsilon))
        return sum(math.comb(r, k) * q**k * (1 - q) ** (r - k) for k in range(max(0, at), r + 1))

    steps = max(((f(v - i) - f(v)) / i for i in range(1, m + 1)), default=0.0)
    return min(1.0, f(v) + 2 * m * delta * steps)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 40).flatmap(
        lambda m: st.tuples(
            st.just(m),
            st.integers(1, m).flatmap(lambda r: st.tuples(st.just(r), st.integers(0, r))),
        )
    ),
    st.floats(0, 4),
    st.sampled_from([0.0, 1e-5, 1e-3, 0.02]),
)
def test_p_value_is_the_theorems(
    shape: tuple[int, tuple[int, int]], epsilon: float, delta: float
) -> None:
    m, (r, v) = shape
    found = p_value(canaries=m, guesses=r, correct=v, epsilon=epsilon, delta=delta)
    assert found == pytest.approx(theorem(m, r, v, epsilon, delta), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("m", "r"), [(100, 100), (4000, 394), (20_000, 590)])
@pytest.mark.parametrize("delta", [1e-6, 1e-5, 1e-4])
def test_evidence_grows_with_right_guesses_and_shrinks_with_epsilon(
    m: int, r: int, delta: float
) -> None:
    """Where a claim is refuted, every smaller one is: the bisection finds the only crossing."""
    for v in np.linspace(0.5 * r, r, 6).astype(int):
        values = [
            p_value(canaries=m, guesses=r, correct=int(v), epsilon=e, delta=delta)
            for e in np.linspace(0, 8, 60)
        ]
        refuted = np.array(values) < 0.05
        assert not (np.diff(refuted.astype(int)) > 0).any()
    bounds = [
        epsilon_lower_bound(canaries=m, guesses=r, correct=v, delta=delta)
        for v in range(r // 2, r + 1, max(1, r // 20))
    ]
    assert bounds == sorted(bounds)


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 3.0])
def test_a_true_claim_is_refuted_in_at_most_one_audit_of_twenty(epsilon: float) -> None:
    """Randomised response is exactly ε-DP, and nothing can be guessed better."""
    rng = np.random.default_rng(7)
    m, audits = 400, 3000
    right = rng.binomial(m, special.expit(epsilon), size=audits)
    bounds = {
        v: epsilon_lower_bound(canaries=m, guesses=m, correct=int(v), delta=0.0)
        for v in np.unique(right)
    }
    wrong = sum(bounds[v] > epsilon for v in right)
    assert stats.binom.sf(wrong - 1, audits, 0.05) > 1e-3
    assert wrong > 0.02 * audits  # nor is the bound needlessly low


def test_a_gaussian_release_is_not_refuted_with_its_own_epsilon() -> None:
    """The planned guesses, on scores of σ = 1 whose exact ε at δ = 1e-5 is 4.38."""
    from dp_fedmed.privacy import gaussian_epsilon

    rng, m, delta = np.random.default_rng(1), 1000, 1e-5
    claim = gaussian_epsilon(noise_multiplier=1.0, delta=delta)
    plan = plan_guesses(
        canaries=m, claim=claim, delta=delta, noise_multiplier=1.0, sample_rate=1.0, steps=1
    )
    for _ in range(100):
        coins = rng.random(m) < 0.5
        correct = count_correct(coins + rng.normal(size=m), coins, plan)
        bound = epsilon_lower_bound(canaries=m, guesses=plan.total, correct=correct, delta=delta)
        assert bound < claim


def plan(**changed: float) -> Guesses:
    given: dict[str, float] = {
        "canaries": 3000,
        "claim": 1.0,
        "delta": 1e-5,
        "noise_multiplier": 4.0,
        "sample_rate": 1.0,
        "steps": 1,
    }
    return plan_guesses(**{**given, **changed})  # type: ignore[arg-type]


def test_guesses_are_planned_from_settings_alone() -> None:
    full = plan()
    assert full == plan()
    assert full.included == full.excluded  # the two sides tell the same where everyone takes part
    rare = plan(sample_rate=0.01, noise_multiplier=1.0)
    assert rare.included > 10 * rare.excluded  # who rarely takes part is hardly ever seen missing
    assert plan(claim=3.0).total > full.total  # a larger ε takes more guesses to refute


def test_a_claim_out_of_reach_has_every_canary_guessed() -> None:
    assert plan(claim=9.0).total == 3000
    assert plan(claim=9.0, canaries=51).total == 51
    assert plan(claim=0.3, canaries=500, delta=1e-2).total == 500  # few would prove nothing


def test_planned_guesses_could_refute_the_claim() -> None:
    for claim in (0.1, 0.5, 1.0, 2.0, 4.0):
        made = plan(claim=claim)
        top = epsilon_lower_bound(canaries=3000, guesses=made.total, correct=made.total, delta=1e-5)
        assert top > claim


def test_scores_are_guessed_from_both_ends() -> None:
    scores = np.array([5.0, 4.0, 0.0, 0.0, -4.0, -5.0])
    coins = np.array([True, False, True, False, False, True])
    assert count_correct(scores, coins, Guesses(included=2, excluded=0)) == 1
    assert count_correct(scores, coins, Guesses(included=0, excluded=2)) == 1
    assert count_correct(scores, coins, Guesses(included=3, excluded=3)) == 2


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: p_value(canaries=5, guesses=6, correct=1, epsilon=0, delta=0), "guesses=6"),
        (lambda: p_value(canaries=5, guesses=4, correct=5, epsilon=0, delta=0), "correct=5"),
        (lambda: p_value(canaries=5, guesses=4, correct=1, epsilon=math.nan, delta=0), "epsilon"),
        (lambda: p_value(canaries=5, guesses=4, correct=1, epsilon=-1, delta=0), "epsilon"),
        (
            lambda: epsilon_lower_bound(canaries=5, guesses=4, correct=1, delta=0, confidence=1.0),
            "confidence",
        ),
        (lambda: Guesses(included=0, excluded=0), "at least one"),
        (lambda: count_correct([1.0], [True, False], Guesses(included=1, excluded=0)), "fit"),
        (lambda: count_correct([math.nan], [True], Guesses(included=1, excluded=0)), "finite"),
        (lambda: count_correct([1.0], [True], Guesses(included=1, excluded=1)), "2 guesses"),
    ],
)
def test_what_makes_no_sense_is_refused(call, said: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=said):
        call()


@pytest.mark.parametrize("mu", [0.1, 1.0, 3.0])
def test_a_true_mu_is_hardly_ever_exceeded(mu: float) -> None:
    """A Gaussian release with the shift that it claims, 500 times with and without."""
    rng = np.random.default_rng(0)
    right = stats.norm.cdf(mu / 2.0)
    hits, alarms = rng.binomial(500, right, 2000), rng.binomial(500, 1.0 - right, 2000)
    bounds = [
        gaussian_lower_bound(hits=int(k), present=500, false_alarms=int(j), absent=500)
        for k, j in zip(hits, alarms, strict=True)
    ]
    assert np.mean(np.array(bounds) > mu) <= 0.05
    assert np.mean(bounds) > mu - 0.75


def test_mu_is_0_without_evidence_and_finite_with_all_of_it() -> None:
    even = gaussian_lower_bound(hits=50, present=100, false_alarms=50, absent=100)
    assert even == 0.0 == gaussian_lower_bound(hits=0, present=9, false_alarms=9, absent=9)
    assert 4.0 < gaussian_lower_bound(hits=500, present=500, false_alarms=0, absent=500) < 5.0
    with pytest.raises(ValueError, match="cannot have been"):
        gaussian_lower_bound(hits=3, present=2, false_alarms=0, absent=1)
