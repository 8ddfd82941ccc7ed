"""A plan in sentences: each names the number and what to do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dp_fedmed.config import compose
from dp_fedmed.planning.forecast import forecast
from dp_fedmed.planning.outlook import Caution, Concern, Outlook, outlook
from dp_fedmed.planning.suggestions import Suggestion
from dp_fedmed.reporting.plan_words import (
    NO_PRIVACY,
    suggestion_json,
    suggestion_text,
    unprotected,
    warnings,
)

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
