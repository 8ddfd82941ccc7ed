"""A plan in sentences: each names the number and what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dp_fedmed.assemble import make_learner
from dp_fedmed.config import Config, compose
from dp_fedmed.data import load_data
from dp_fedmed.federation.plan import ClientPlan, PrivacyPlan
from dp_fedmed.federation.sampling import AllSampler
from dp_fedmed.learning import AnomalyLearner
from dp_fedmed.planning.forecast import forecast
from dp_fedmed.planning.outlook import Caution, Concern, Outlook, outlook
from dp_fedmed.planning.plan import make_plan
from dp_fedmed.planning.suggestions import Suggestion
from dp_fedmed.reporting.plan_words import (
    NO_PRIVACY,
    anomaly_advice,
    delta_warnings,
    suggestion_json,
    suggestion_text,
    unprotected,
    warnings,
)

OWN = ClientPlan(records=100, sample_rate=1.0, steps=1, participations=None, noise_multiplier=3.0)
CLIENTS = {"a": OWN, "b": replace(OWN, records=50, noise_multiplier=4.0)}
RECORDS = dict.fromkeys("abcde", 90)
FOUND = Suggestion(
    key="training.batch_size",
    before=32,
    after=64,
    level="sample",
    sigma=(2.0, 3.0),
    noise=(0.1, 0.05),
    steps=(10, 5),
    run=1.25,
    accountant="rdp",
)


def outlook_of(*words: str, weights: int | None = None) -> Outlook:
    return outlook(forecast(compose(list(words)), RECORDS, fast=True), weights)


def test_every_concern_has_a_sentence_and_each_its_own() -> None:
    made = outlook_of("privacy=hybrid", "privacy.sample.target_delta=0.1")
    levels = [Caution(each, "sample", 12.0) for each in Concern]
    said = warnings(replace(made, cautions=tuple(levels)))
    assert all(said)
    assert len(set(said)) == len(said)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["privacy=sample", "privacy.noise_seed=7"], "privacy.noise_seed=7 is public"),
        (["privacy=sample", "privacy.sample.target_epsilon=50"], "is a weak promise"),
        (["privacy=sample", "privacy.sample.target_delta=0.1"], "0.1"),
    ],
)
def test_what_is_dangerous_is_warned_of(words: list[str], said: str) -> None:
    assert said in " ".join(warnings(outlook_of(*words)))


def test_a_level_is_spoken_of_in_its_own_unit() -> None:
    made = outlook_of("privacy=hybrid")
    for level, (unit, other) in {
        "sample": ("batch", "cohort"),
        "user": ("cohort", "batch"),
    }.items():
        caution = Caution(Concern.too_few_units, level, 0.25)
        (said,) = warnings(replace(made, cautions=(caution,)))
        assert f"the {unit} is too small" in said
        assert "0.25 of the noise" in said
        assert other not in said


def test_a_suggestion_says_what_changes_and_nothing_else() -> None:
    assert suggestion_text(FOUND) == (
        "training.batch_size=64 (now 32): σ 2 → 3 (+50 %), noise in an averaged gradient −50 %, "
        "5 steps instead of 10, signal-to-noise over the run +25 %"
    )
    same = replace(FOUND, before=None, sigma=(2.0, 2.0), noise=(0.1, 0.1), steps=(5, 1), run=1.0)
    assert suggestion_text(same) == "training.batch_size=64: 1 step instead of 5"
    assert "averaged update" in suggestion_text(replace(FOUND, level="user"))


def test_a_suggestion_can_be_given_as_it_stands() -> None:
    held = suggestion_json(replace(FOUND, key="federation.sample_rate", before=0.5, after=0.25))
    assert (held["override"], held["before"]) == ("federation.sample_rate=0.25", "0.5")
    assert held["text"].startswith(held["override"])
    assert held["noise_multiplier"] == [2.0, 3.0]


def test_what_is_not_promised_is_said() -> None:
    assert unprotected(compose(["privacy=none"])) == list(NO_PRIVACY)
    assert unprotected(compose(["privacy=sample"])) == []
    (said,) = unprotected(compose(["privacy=user"]))
    assert "not against the server" in said
    assert said.endswith(".")


def advice(config: Config, clients: dict[str, ClientPlan]) -> Any:
    learner = make_learner(config, load_data(config.data, seed=config.seed))
    assert isinstance(learner, AnomalyLearner)
    return anomaly_advice(
        config,
        learner,
        PrivacyPlan(delta_sample=1e-5, delta_user=None, clients=clients, user_event=None),
        AllSampler(rate=1.0),
    )


def test_a_release_that_is_mostly_noise_is_advised_on(tiny: Callable[..., Config]) -> None:
    config = tiny("privacy=sample", "anomaly.mechanism=dp_gaussian", "federation.num_clients=2")
    said = advice(config, {name: replace(own, records=5) for name, own in CLIENTS.items()})
    assert "and a round has 10: use more images" in said
    assert advice(config, {n: replace(own, records=10**8) for n, own in CLIENTS.items()}) is None


def test_noisy_rows_are_weak_however_many_there_are(tiny: Callable[..., Config]) -> None:
    config = tiny("privacy=sample", "anomaly.mechanism=noisy_rows", "federation.num_clients=2")
    few, many = (
        advice(config, {n: replace(own, records=count) for n, own in CLIENTS.items()})
        for count in (5, 10**8)
    )
    assert "however many images there are" in few
    assert few == many


def test_a_delta_that_would_allow_to_publish_a_unit_is_warned_of() -> None:
    config = compose(["privacy=sample", "privacy.sample.target_delta=0.02"])
    plan = make_plan(config, records={"a": 100}, sampler=AllSampler(rate=1.0), is_private=True)
    assert delta_warnings(config, plan, {"a": 100}) == [
        "privacy.sample.target_delta=0.02 is not below 1/100 (records of the smallest client): it "
        "would allow to publish one of them in full; use 1e-05 or less"
    ]
    assert delta_warnings(config, plan, {"a": 10}) == []


def test_a_plan_in_which_no_round_fits_says_so() -> None:
    words = ("privacy.sample.noise_multiplier=0.4", "privacy.sample.target_epsilon=2")
    said = " ".join(warnings(outlook_of("privacy=sample", *words, weights=60)))
    assert "not a single round fits the target" in said
    assert "noise drowns" not in said
