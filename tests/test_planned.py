"""A plan from words: for one new run, with the given sizes, and without a warning in the log."""

from __future__ import annotations

import pytest

from dp_fedmed.errors import ConfigError
from dp_fedmed.planned import make_plan_of

RECORDS = {"a": 100, "b": 50, "c": 200}


@pytest.mark.parametrize("word", ["resume=checkpoints/run", "+resume=x", "new_phase=true"])
def test_a_plan_is_for_a_new_run(word: str) -> None:
    with pytest.raises(ConfigError, match="a plan is for a new run"):
        make_plan_of(["privacy=sample", word], records=RECORDS, fast=True)


def test_a_plan_is_for_one_run() -> None:
    with pytest.raises(ConfigError, match=r"seed=1,2 names several values"):
        make_plan_of(["privacy=sample", "seed=1,2"], records=RECORDS, fast=True)


def test_given_sizes_are_the_clients() -> None:
    plan = make_plan_of(["privacy=sample"], records=RECORDS, fast=True)
    assert plan.forecast.config.federation.num_clients == 3
    assert plan.forecast.records == RECORDS
    same = make_plan_of(["privacy=sample", "federation.num_clients=3"], records=RECORDS, fast=True)
    assert same.forecast.plan == plan.forecast.plan
    with pytest.raises(ConfigError, match=r"num_clients=4 contradicts --records, which names 3"):
        make_plan_of(["privacy=sample", "federation.num_clients=4"], records=RECORDS, fast=True)


def test_without_sizes_they_are_those_of_the_data() -> None:
    plan = make_plan_of(["privacy=sample", "federation.num_clients=4"], fast=True)
    assert len(plan.forecast.records) == 4
    assert min(plan.forecast.records.values()) > 0
    assert (plan.weights, plan.advice) == (None, None), "a fast plan builds no network"


def test_a_slow_plan_counts_weights_and_says_what_a_run_would_refuse() -> None:
    plan = make_plan_of(["privacy=sample", "federation.num_clients=4"])
    assert plan.weights is not None
    assert plan.weights > 0
    assert plan.advice is None


def test_style_none_plans_nothing() -> None:
    plan = make_plan_of(["privacy=none"], records=RECORDS)
    assert (plan.forecast.plan, plan.shared) == (None, None)
    assert plan.suggestions == ()


def test_the_log_stays_silent(caplog: pytest.LogCaptureFixture) -> None:
    words = ["privacy=sample", "privacy.sample.target_delta=0.2"]
    assert any("target_delta" in said for said in make_plan_of(words, records=RECORDS).warnings)
    assert not caplog.records
