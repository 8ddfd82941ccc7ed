"""What a client's reply may hold besides arrays, and how its refusal is worded."""

from __future__ import annotations

import re
from collections.abc import Mapping

from flwr.app import RecordDict

from dp_fedmed.federation.failures import from_peer

#: What no honest reply exceeds. Where no mechanism clips answers, this is all that bounds them.
LARGEST_NORM, LARGEST_METRIC, MOST_EXAMPLES, MOST_METRICS = 1e6, 1e12, 10**9, 100
METRIC_NAME = re.compile(r"[\w./ -]{1,64}")


def refusal(error: ValueError | KeyError) -> str:
    """Why a reply is refused, as it may be shown: parts of it are the client's own words."""
    missing = isinstance(error, KeyError)
    return from_peer(f"its reply has no {error}" if missing else error)


def checked_metrics(content: RecordDict) -> dict[str, float]:
    """The metrics of a reply: few, with plain names, finite and of a size that adds up.

    Raises:
        ValueError: naming what is not.
    """
    given = content.metric_records["metrics"]
    if len(given) > MOST_METRICS:
        raise ValueError(f"it sent {len(given)} metrics, more than {MOST_METRICS}")
    metrics = {}
    for key, value in given.items():
        if not METRIC_NAME.fullmatch(key):
            raise ValueError("it sent a metric whose name is not one")
        if isinstance(value, list) or not abs(value) <= LARGEST_METRIC:
            raise ValueError(f"metric {key!r} is not a finite number up to {LARGEST_METRIC:g}")
        metrics[key] = float(value)
    return metrics


def counted_examples(metrics: Mapping[str, float]) -> int:
    """How many records a client says it has.

    Raises:
        ValueError: for what is not a count, or more than any client has.
    """
    examples = metrics.get("num-examples", -1)
    if examples != int(examples) or not 0 <= examples <= MOST_EXAMPLES:
        raise ValueError(f"num-examples={examples:g} is not a count of records")
    return int(examples)
