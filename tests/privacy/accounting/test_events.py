"""PrivacyEvent: what has no analysis cannot be constructed."""

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_fedmed.privacy import PrivacyEvent
from dp_fedmed.privacy.accounting.events import ADJACENCIES, SAMPLINGS, UNITS

FIELDS = {
    "poisson": {"sample_rate": 0.1},
    "full": {},
    "none": {},
    "without_replacement": {"cohort_size": 3, "population": 30},
}
#: (sampling, adjacency) → (analysis, σ factor, q).
VALID = {
    ("poisson", "add_remove"): ("poisson", 1.0, 0.1),
    ("poisson", "zero_out"): ("poisson", 1.0, 0.1),
    ("full", "add_remove"): ("poisson", 1.0, 1.0),
    ("full", "zero_out"): ("poisson", 1.0, 1.0),
    ("full", "replace_one"): ("poisson", 0.5, 1.0),
    ("none", "add_remove"): ("poisson", 1.0, 1.0),
    ("none", "zero_out"): ("poisson", 1.0, 1.0),
    ("none", "replace_one"): ("poisson", 0.5, 1.0),
    ("without_replacement", "zero_out"): ("poisson", 1.0, 1.0),
    ("without_replacement", "replace_one"): ("without_replacement", 1.0, 0.1),
}


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(("sampling", "adjacency"), list(itertools.product(SAMPLINGS, ADJACENCIES)))
def test_each_combination_has_its_analysis_or_does_not_exist(unit, sampling, adjacency):
    def make():
        return PrivacyEvent(
            unit=unit,
            adjacency=adjacency,
            sampling=sampling,
            noise_multiplier=3.0,
            **FIELDS[sampling],
        )

    if (sampling, adjacency) in VALID:
        kind, factor, q = VALID[sampling, adjacency]
        assert make().key == (kind, 3.0 * factor, q)
    else:
        with pytest.raises(ValueError, match="adjacency="):
            make()


def test_everyone_without_replacement_is_full_participation():
    event = PrivacyEvent.fixed_size(
        unit="client",
        noise_multiplier=2.0,
        cohort_size=10,
        population=10,
        adjacency="replace_one",
    )
    assert event.key == ("poisson", 1.0, 1.0)


BAD_NUMBERS = [math.nan, math.inf, -math.inf, 0.0, -1.0, True, "1", None, 1j, np.bool_(True), [1]]


@pytest.mark.parametrize("value", BAD_NUMBERS)
@pytest.mark.parametrize("field", ["noise_multiplier", "sample_rate", "count"])
def test_bad_numbers_are_refused_by_name(field, value):
    arguments = {"noise_multiplier": 1.0, "sample_rate": 0.1, "count": 1, field: value}
    with pytest.raises((TypeError, ValueError), match=field):
        PrivacyEvent.poisson(unit="record", **arguments)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sample_rate", 1.0000001),
        ("count", 1.0),
        ("count", 2**53 + 1),
        ("noise_multiplier", 1e-200),
        ("noise_multiplier", 10**400),
        ("is_private", 0),
        ("unit", "patient"),
        ("adjacency", "swap"),
    ],
)
def test_values_out_of_range_are_refused_by_name(field, value):
    arguments = {"unit": "record", "noise_multiplier": 1.0, "sample_rate": 0.1, field: value}
    with pytest.raises((TypeError, ValueError), match=field):
        PrivacyEvent.poisson(**arguments)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_fields_of_another_sampler_are_refused(sampling):
    everything = {"sample_rate": 0.1, "cohort_size": 3, "population": 30}
    with pytest.raises(ValueError, match="does not take"):
        PrivacyEvent(
            unit="record",
            adjacency="zero_out",
            sampling=sampling,
            noise_multiplier=1.0,
            **everything,
        )


def test_a_cohort_larger_than_its_population_is_refused():
    with pytest.raises(ValueError, match="exceeds population"):
        PrivacyEvent.fixed_size(
            unit="client",
            noise_multiplier=1.0,
            cohort_size=31,
            population=30,
            adjacency="zero_out",
        )


def test_numpy_scalars_become_plain_numbers():
    event = PrivacyEvent.poisson(
        unit="record",
        noise_multiplier=np.float32(1.5),
        sample_rate=np.float64(0.1),
        count=np.int64(7),
    )
    assert json.loads(json.dumps(event.to_json()))["count"] == 7
    assert type(event.noise_multiplier) is float


def test_events_are_frozen():
    event = PrivacyEvent.full(unit="record", noise_multiplier=1.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.noise_multiplier = 100.0


@given(
    sigma=st.floats(1e-3, 1e6),
    q=st.floats(1e-12, 1.0),
    count=st.integers(1, 2**53),
    private=st.booleans(),
)
def test_json_round_trip_is_exact(sigma, q, count, private):
    event = PrivacyEvent.poisson(
        unit="client", noise_multiplier=sigma, sample_rate=q, count=count, is_private=private
    )
    assert PrivacyEvent.from_json(json.loads(json.dumps(event.to_json()))) == event


GOOD = PrivacyEvent.poisson(unit="record", noise_multiplier=1.0, sample_rate=0.1).to_json()


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        "x",
        {},
        {**GOOD, "extra": 1},
        {k: v for k, v in GOOD.items() if k != "is_private"},
        {k: v for k, v in GOOD.items() if k != "sample_rate"},
        {**GOOD, "sample_rate": None},
        {**GOOD, "count": 0},
        {**GOOD, "noise_multiplier": "1.0"},
        {**GOOD, 3: 4},
    ],
)
def test_bad_json_is_refused(data):
    with pytest.raises(ValueError, match="not a privacy event"):
        PrivacyEvent.from_json(data)
