"""What a reply may hold besides arrays: few metrics, with plain names and sizes that add up."""

from __future__ import annotations

import math

import pytest
from flwr.app import MetricRecord, RecordDict

from dp_fedmed.federation.replies import (
    LARGEST_METRIC,
    MOST_EXAMPLES,
    MOST_METRICS,
    checked_metrics,
    counted_examples,
    refusal,
)


def reply(metrics: dict[str, float | list[float]]) -> RecordDict:
    return RecordDict({"metrics": MetricRecord(metrics)})


def test_honest_metrics_come_back_as_floats() -> None:
    assert checked_metrics(reply({"num-examples": 12, "val/f1 score": -0.5})) == {
        "num-examples": 12.0,
        "val/f1 score": -0.5,
    }


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ({f"m{n}": 0.0 for n in range(MOST_METRICS + 1)}, "it sent 101 metrics, more than 100"),
        ({"a\nb": 0.0}, "whose name is not one"),
        ({"": 0.0}, "whose name is not one"),
        ({"x" * 65: 0.0}, "whose name is not one"),
        ({"loss": math.nan}, "metric 'loss' is not a finite number"),
        ({"loss": math.inf}, "metric 'loss' is not a finite number"),
        ({"loss": 2 * LARGEST_METRIC}, "metric 'loss' is not a finite number"),
        ({"loss": [0.5, 0.5]}, "metric 'loss' is not a finite number"),
    ],
)
def test_other_metrics_are_refused(metrics: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        checked_metrics(reply(metrics))


@pytest.mark.parametrize("examples", [-1.0, 0.5, MOST_EXAMPLES + 1.0])
def test_what_is_no_count_of_records_is_refused(examples: float) -> None:
    with pytest.raises(ValueError, match="is not a count of records"):
        counted_examples({"num-examples": examples})


def test_records_are_counted() -> None:
    assert counted_examples({"num-examples": 0.0}) == 0
    assert counted_examples({"num-examples": float(MOST_EXAMPLES)}) == MOST_EXAMPLES
    with pytest.raises(ValueError, match="num-examples=-1"):
        counted_examples({})


def test_a_refusal_is_one_line() -> None:
    assert refusal(KeyError("arrays")).startswith("its reply has no 'arrays'")
    assert "\n" not in refusal(ValueError("two\nlines \x1b[31mred"))
