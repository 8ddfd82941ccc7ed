"""Forecasts: the records that clients will have, and the client that binds."""

from __future__ import annotations

from dp_fedmed.assemble import client_runtime
from dp_fedmed.config import compose
from dp_fedmed.data import load_data
from dp_fedmed.planning.forecast import forecast, simulated_records
from tests.studies import STUDY


def test_records_are_counted_as_a_client_counts_them() -> None:
    config = compose(
        [
            *(*STUDY, "privacy=none", "data.client_val_fraction=0", "federation.num_clients=3"),
            *("data.group_by=patient", "data.max_records_per_group=3"),
        ]
    )
    data = load_data(config.data, seed=config.seed)
    site = client_runtime(config)
    own = {
        f"client-{number:05d}": len(site.records({"partition-id": number, "num-partitions": 3})[0])
        for number in range(3)
    }
    assert simulated_records(config, data) == own
    assert sum(own.values()) < len(data.train)


def test_fast_and_tight_is_exact_for_the_client_that_binds() -> None:
    config = compose(
        [
            *("privacy=sample", "recipe=none", "privacy.accountant=tight"),
            *("federation.num_clients=3", "federation.num_rounds=3"),
        ]
    )
    records = {"a": 60, "b": 120, "c": 120}
    fast, full = (forecast(config, records, fast=fast) for fast in (True, False))
    assert fast.binding is not None
    assert full.binding is not None
    assert fast.binding.names == full.binding.names == ("a",)
    assert fast.binding.spending.sigma == full.binding.spending.sigma
    (rough,) = (g.spending for g in fast.groups if "b" in g.names)
    (exact,) = (g.spending for g in full.groups if "b" in g.names)
    assert rough.is_upper_bound
    assert not exact.is_upper_bound
    assert rough.sigma > exact.sigma
