"""Samplers: sizes, order, and the event that each makes."""

from __future__ import annotations

import numpy as np
import pytest

from dp_fedmed.config import SamplerName, compose
from dp_fedmed.federation.sampling import SAMPLERS, AllSampler, FixedSampler, PoissonSampler
from dp_fedmed.planning.plan import make_sampler

NAMES = [f"client-{i:05d}" for i in range(40)]


@pytest.mark.parametrize("name", list(SamplerName))
def test_cohorts_are_sorted_distinct_and_repeatable(name: SamplerName) -> None:
    rate = 1.0 if name is SamplerName.all else 0.3
    sampler = make_sampler(
        compose([f"federation.sampler={name}", f"federation.sample_rate={rate}"])
    )
    assert type(sampler) is SAMPLERS[name]
    cohort = sampler.cohort(NAMES, np.random.default_rng(3))
    assert cohort == sorted(set(cohort))
    assert cohort == sampler.cohort(list(reversed(NAMES)), np.random.default_rng(3))


def test_a_fixed_cohort_has_its_size_and_changes_by_round() -> None:
    sampler = FixedSampler(rate=0.25)
    cohorts = [tuple(sampler.cohort(NAMES, np.random.default_rng(r))) for r in range(20)]
    assert {len(c) for c in cohorts} == {10}
    assert len(set(cohorts)) > 10
    assert len(FixedSampler(rate=1e-6).cohort(NAMES, np.random.default_rng(0))) == 1


def test_poisson_cohorts_vary_around_their_rate_and_may_be_empty() -> None:
    rng = np.random.default_rng(0)
    sizes = [len(PoissonSampler(rate=0.25).cohort(NAMES, rng)) for _ in range(400)]
    assert np.mean(sizes) == pytest.approx(10, abs=0.6)
    assert np.var(sizes) == pytest.approx(40 * 0.25 * 0.75, rel=0.3)
    assert PoissonSampler(rate=1e-9).cohort(NAMES, rng) == []


def test_only_poisson_claims_amplification() -> None:
    events = {
        type(sampler): sampler.event(noise_multiplier=2.0, population=40)
        for sampler in (AllSampler(rate=1.0), FixedSampler(rate=0.25), PoissonSampler(rate=0.25))
    }
    assert events[PoissonSampler].key == ("poisson", 2.0, 0.25)
    assert events[FixedSampler].key == ("poisson", 2.0, 1.0)
    assert events[AllSampler].key == ("poisson", 2.0, 1.0)


def test_the_denominator_does_not_depend_on_who_came() -> None:
    assert PoissonSampler(rate=0.25).expected(40) == 10.0
    assert FixedSampler(rate=0.26).expected(40) == 10.0
    assert AllSampler(rate=1.0).expected(40) == 40.0
