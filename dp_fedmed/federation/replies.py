"""Replies of clients: nothing of one is used before it was checked here."""

from __future__ import annotations

import logging
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np
from flwr.app import Message, MetricRecord, RecordDict

from dp_fedmed.federation import arrays as model_arrays
from dp_fedmed.federation.failures import from_peer
from dp_fedmed.federation.privacy_guard import PrivacyGuard
from dp_fedmed.federation.private_log import cohort_logger
from dp_fedmed.federation.rounds import RoundRecord

logger = logging.getLogger(__name__)

Arrays = Mapping[str, np.ndarray[Any, Any]]
MOST_WARNINGS = 10  # different ones about one client; more would let it fill the log

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


class Checks(Protocol):
    """What a client's reply must say of its records; both raise ValueError where it does not."""

    def check_examples(self, name: str, examples: int) -> None:
        """Their number."""

    def check_reply(self, name: str, realised: Mapping[str, object] | None, /) -> None:
        """Its own (σ, q, T), and how often it has paid."""


def read_reply(
    name: str,
    content: RecordDict,
    like: Arrays,
    *,
    checks: Checks | None,
    max_norm: float | None = None,
) -> tuple[model_arrays.State, int, float | None]:
    """A client's answer, number of examples and loss, all of them checked.

    Args:
        name: the client's.
        content: of its reply.
        like: the names, shapes and types of its answer.
        checks: what it was ordered to do for its records.
        max_norm: the largest norm of an answer that nobody clips.

    Raises:
        ValueError, KeyError: for the first thing that is unfit.
    """
    metrics = checked_metrics(content)
    examples = counted_examples(metrics)
    if checks is not None:
        checks.check_examples(name, examples)
        checks.check_reply(name, content.config_records.get("privacy"))
    answer = model_arrays.checked(content.array_records["arrays"], like, max_norm=max_norm)
    return answer, examples, metrics.get("train_loss")


class ReplyReader:
    """Reads the replies of a run's rounds, and says once what is wrong with a client's.

    Args:
        names: of the nodes.
        guard: knows what a client was ordered to do for its records.
        hides_cohorts: whether who was asked is a secret, and what is said of it goes to `private/`.
        max_norm: the largest norm of an answer that nobody clips.
        whole_models: clients answer models, of which the change is taken.
    """

    def __init__(
        self,
        names: Mapping[int, str],
        *,
        guard: PrivacyGuard | None,
        hides_cohorts: bool,
        max_norm: float | None,
        whole_models: bool = False,
    ) -> None:
        self.names, self.guard = names, guard
        self.shown = cohort_logger if hides_cohorts else logger
        self.max_norm, self.whole_models = max_norm, whole_models
        self._warned: defaultdict[str, set[str]] = defaultdict(set)

    def contributions(
        self, record: RoundRecord, replies: Iterable[Message], like: Callable[[str], Arrays]
    ) -> Iterator[tuple[str, model_arrays.State, int]]:
        """Names, checked updates and numbers of examples, in name order; notes the mean loss.

        Args:
            record: of the round; who failed, and the mean loss, are noted in it.
            replies: in any order.
            like: the names, shapes and types of a client's answer.
        """
        losses: list[tuple[float, int]] = []
        for name, reply in self._in_name_order(record.cohort, replies):
            contribution = self._contribution(record, name, reply, like(name))
            if contribution is not None:
                update, examples, loss = contribution
                if loss is not None:
                    losses.append((loss, examples))
                yield name, update, examples
        if losses:
            record.train_loss = weighted_mean(losses)

    def evaluations(self, record: RoundRecord, replies: Iterable[Message]) -> MetricRecord | None:
        """The clients' metrics, averaged over their validation records; noted by client."""
        weights: dict[str, int] = {}
        for reply in replies:
            name = self.names.get(reply.metadata.src_node_id, "an unknown node")
            try:
                if name not in self.names.values() or reply.has_error():
                    raise ValueError(reply.error.reason if reply.has_error() else "not asked")
                metrics = checked_metrics(reply.content)
                examples = counted_examples(metrics)
                del metrics["num-examples"]
            except (ValueError, KeyError) as error:
                self._warn(logger, record, name, "did not evaluate", refusal(error))
                continue
            if examples > 0 and metrics:
                weights[name] = examples
                record.client_metrics[name] = metrics
        if not weights:
            return None
        record.client_metrics = dict(sorted(record.client_metrics.items()))
        keys = sorted({key for m in record.client_metrics.values() for key in m})
        rows = [(record.client_metrics[name], weights[name]) for name in sorted(weights)]
        return MetricRecord(
            {key: weighted_mean([(m[key], w) for m, w in rows if key in m]) for key in keys}
        )

    def _in_name_order(
        self, cohort: list[str], replies: Iterable[Message]
    ) -> Iterator[tuple[str, Message | None]]:
        """Each client's reply, in the cohort's order; only those that came early are held back."""
        early: dict[str, Message] = {}
        pending = deque(cohort)
        for reply in replies:
            name = self.names.get(reply.metadata.src_node_id)
            if name is None or name in early or name not in pending:
                continue  # `exchange` lets none of these through; a caller of ours might
            early[name] = reply
            while pending and pending[0] in early:
                first = pending.popleft()
                yield first, early.pop(first)
        for name in pending:
            yield name, early.get(name)

    def _contribution(
        self, record: RoundRecord, name: str, reply: Message | None, like: Arrays
    ) -> tuple[model_arrays.State, int, float | None] | None:
        """A client's checked update, examples and loss; None, with one warning, if unfit."""
        try:
            if reply is None:
                raise ValueError("no reply in time")
            if reply.has_error():
                raise ValueError(reply.error.reason or "it failed")
            answer, examples, loss = read_reply(
                name, reply.content, like, checks=self.guard, max_norm=self.max_norm
            )
        except (ValueError, KeyError) as error:
            self.refuse(record, name, refusal(error))
            return None
        if self.whole_models:
            answer = {key: np.subtract(value, like[key]) for key, value in answer.items()}
        return answer, examples, loss

    def refuse(self, record: RoundRecord, name: str, reason: str) -> None:
        """Note that a client contributed nothing, with one warning."""
        record.failed[name] = reason
        self._warn(self.shown, record, name, "contributed nothing", reason)

    def _warn(
        self, shown: logging.Logger, record: RoundRecord, name: str, what: str, reason: str
    ) -> None:
        """Say something about a client once, however often it happens."""
        warned = self._warned[name]
        if reason not in warned and len(warned) < MOST_WARNINGS:
            warned.add(reason)
            shown.warning("round %d: %s %s: %s", record.server_round, name, what, reason)


def weighted_mean(pairs: list[tuple[float, int]]) -> float:
    """Of values and their counts; 0 without any count."""
    weight = sum(count for _, count in pairs)
    return float(sum(value * count for value, count in pairs) / weight) if weight else 0.0
