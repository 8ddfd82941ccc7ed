"""Groups: never below what is exact, growing with k, and one relation for mixed neighbours."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import binom

from dp_fedmed.privacy import (
    History,
    PrivacyEvent,
    chained_epsilon,
    compute_noise_multiplier,
    group_epsilon,
    mixed_epsilon,
)

HISTORY = History(
    [PrivacyEvent.poisson(unit="record", noise_multiplier=2.0, sample_rate=0.1, count=100)]
)


def full(sigma: float, **more: str) -> PrivacyEvent:
    return PrivacyEvent.full(unit="record", noise_multiplier=sigma, **more)  # type: ignore[arg-type]


def test_a_group_of_one_is_a_record() -> None:
    assert chained_epsilon(HISTORY, size=1, delta=1e-5) == HISTORY.epsilon(delta=1e-5)
    assert group_epsilon(HISTORY, size=1, delta=1e-5) == HISTORY.epsilon(delta=1e-5, method="tight")


def test_larger_groups_cost_more_than_proportionally() -> None:
    chained = [chained_epsilon(HISTORY, size=k, delta=1e-5) for k in (1, 2, 4, 8)]
    assert all(b > 2 * a for a, b in pairwise(chained))
    mixtures = [group_epsilon(HISTORY, size=k, delta=1e-5) for k in (1, 2, 4, 8)]
    assert all(b > 1.9 * a for a, b in pairwise(mixtures))
    assert all(a < b for a, b in zip(mixtures[1:], chained[1:], strict=True))


@pytest.mark.parametrize("size", [2, 3, 5])
def test_a_full_batch_moves_by_k_at_once(size: int) -> None:
    """k records of a full-batch Gaussian move the sum by kC: exactly σ/k."""
    exact = History([full(8.0 / size)]).epsilon(delta=1e-5, method="exact")
    history = History([full(8.0)])
    assert chained_epsilon(history, size=size, delta=1e-5) >= exact
    assert group_epsilon(history, size=size, delta=1e-5) == pytest.approx(exact, rel=1e-8)


def test_a_group_bound_holds_and_is_close_by_monte_carlo() -> None:
    """δ of the composed loss at the ε reported, sampled: below δ, and above it for ε − 3 %."""
    sigma, q, k, steps, delta = 1.5, 0.2, 3, 20, 1e-2
    history = History(
        [PrivacyEvent.poisson(unit="record", noise_multiplier=sigma, sample_rate=q, count=steps)]
    )
    epsilon = group_epsilon(history, size=k, delta=delta)
    rng, runs = np.random.default_rng(5), 100_000
    drawn, noise = rng.binomial(k, q, (runs, steps)), rng.normal(0.0, sigma, (runs, steps))
    probabilities = binom.pmf(range(k + 1), k, q)

    def loss(x: np.ndarray) -> np.ndarray:
        ratio = sum(p * np.exp(j * (x - j / 2) / sigma**2) for j, p in enumerate(probabilities))
        return np.log(ratio).sum(axis=1)

    deltas = []
    for at in (epsilon, 0.97 * epsilon):
        removed = np.mean(np.maximum(0.0, -np.expm1(at - loss(drawn + noise))))
        added = np.mean(np.maximum(0.0, -np.expm1(at + loss(noise))))
        deltas.append(max(removed, added))
    assert deltas[0] < 1.05 * delta
    assert deltas[1] > 1.05 * delta


@pytest.mark.parametrize(("k", "about"), [(3, 21.7), (5, 39.1)])
def test_a_patient_of_several_records_is_promised_something(k: int, about: float) -> None:
    sigma = compute_noise_multiplier(
        target_epsilon=8.0,
        target_delta=1e-5,
        sample_rate=0.0032,
        steps_per_round=6250,
        num_rounds=1,
    )
    step = PrivacyEvent.poisson(unit="record", noise_multiplier=sigma, sample_rate=0.0032)
    history = History([step.times(6250)])
    assert group_epsilon(history, size=k, delta=1e-5) == pytest.approx(about, rel=5e-3)
    assert chained_epsilon(history, size=k, delta=1e-5) > 100.0


def test_mixed_neighbours_are_brought_to_replacement() -> None:
    replaced = History([full(4.0, adjacency="replace_one")])
    assert mixed_epsilon(History([full(4.0)]), History(), delta=1e-5) == History(
        [full(4.0)]
    ).epsilon(delta=1e-5)
    both = mixed_epsilon(History([full(4.0)]), replaced, delta=1e-5, method="tight")
    assert both == History([full(2.0), full(2.0)]).epsilon(delta=1e-5, method="exact")
    sampled = mixed_epsilon(HISTORY, replaced, delta=1e-5, method="tight")
    assert sampled == replaced.epsilon(delta=5e-6, method="tight") + chained_epsilon(
        HISTORY, size=2, delta=5e-6
    )
    naive = HISTORY.plus(History([full(2.0)]))
    assert sampled > naive.epsilon(delta=1e-5), "as if both were removals"


def test_a_history_refuses_steps_of_another_neighbouring_relation() -> None:
    """Added up as if they were one relation, they would count too little."""
    removed = full(4.0)
    replaced = full(4.0, adjacency="replace_one")
    for first, second in ((removed, replaced), (replaced, removed)):
        with pytest.raises(ValueError, match="mixed_epsilon"):
            History([first, second])
        with pytest.raises(ValueError, match="mixed_epsilon"):
            History([first]).plus(History([second]))
    assert History([removed, full(4.0, adjacency="zero_out")]).rows() == [(4.0, 1.0, 2)]
