"""Samplers: sizes, seeds, and order."""

from __future__ import annotations

import numpy as np
import pytest

from dp_fedmed.config import FederationConfig, SamplerName
from dp_fedmed.federation.sampling import FixedSampler, PoissonSampler, make_sampler

NAMES = [f"client-{i:05d}" for i in range(40)]


@pytest.mark.parametrize("name", list(SamplerName))
def test_cohorts_are_sorted_distinct_and_repeatable(name: SamplerName) -> None:
    rate = 1.0 if name is SamplerName.all else 0.3
    sampler = make_sampler(FederationConfig(sampler=name, sample_rate=rate), seed=1)
    cohort = sampler.cohort(3, NAMES)
    assert cohort == sorted(set(cohort))
    assert cohort == sampler.cohort(3, list(reversed(NAMES)))


def test_a_fixed_cohort_has_its_size_and_changes_by_round() -> None:
    sampler = FixedSampler(rate=0.25, seed=0)
    cohorts = [tuple(sampler.cohort(r, NAMES)) for r in range(20)]
    assert {len(c) for c in cohorts} == {10}
    assert len(set(cohorts)) > 10
    assert len(FixedSampler(rate=1e-6, seed=0).cohort(1, NAMES)) == 1


def test_poisson_cohorts_vary_around_their_rate_and_may_be_empty() -> None:
    sizes = [len(PoissonSampler(rate=0.25, seed=0).cohort(r, NAMES)) for r in range(400)]
    assert np.mean(sizes) == pytest.approx(10, abs=0.6)
    assert np.var(sizes) == pytest.approx(40 * 0.25 * 0.75, rel=0.3)
    assert PoissonSampler(rate=1e-9, seed=0).cohort(1, NAMES) == []
