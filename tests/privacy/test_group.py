"""Group privacy: never below k times the record's ε, exact for one, growing with k."""

from __future__ import annotations

from itertools import pairwise

import pytest

from dp_fedmed.privacy import History, PrivacyEvent, group_epsilon

HISTORY = History(
    [PrivacyEvent.poisson(unit="record", noise_multiplier=2.0, sample_rate=0.1, count=100)]
)


def test_a_group_of_one_is_a_record() -> None:
    assert group_epsilon(HISTORY, size=1, delta=1e-5) == HISTORY.epsilon(delta=1e-5)


def test_larger_groups_cost_more_than_proportionally() -> None:
    values = [group_epsilon(HISTORY, size=k, delta=1e-5) for k in (1, 2, 4, 8)]
    assert all(b > 2 * a for a, b in pairwise(values))


@pytest.mark.parametrize("size", [2, 3, 5])
def test_a_group_bound_is_above_the_exact_one(size: int) -> None:
    """k records of a full-batch Gaussian move the sum by kC: exactly σ/k."""
    sigma = 8.0
    history = History([PrivacyEvent.full(unit="record", noise_multiplier=sigma)])
    exact = History([PrivacyEvent.full(unit="record", noise_multiplier=sigma / size)])
    assert group_epsilon(history, size=size, delta=1e-5) >= exact.epsilon(
        delta=1e-5, method="exact"
    )
