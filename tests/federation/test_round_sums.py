"""A round's replies become one sum or mean, whichever way they come."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Error, Message, MetricRecord, RecordDict

from dp_fedmed.federation import arrays as model_arrays
from dp_fedmed.federation.flower_compat import set_identity, set_message_id
from dp_fedmed.federation.round_sums import RoundSums
from dp_fedmed.federation.rounds import RoundRecord
from dp_fedmed.federation.server_optimizer import ServerOptimizer
from dp_fedmed.privacy import PrivacyEvent
from dp_fedmed.privacy.mechanisms import ClientUpdates
from dp_fedmed.privacy.mechanisms.base import ServerMechanism

NAMES = {1: "ann", 2: "bob", 3: "eve"}
MODEL = {"w": np.zeros(2, np.float32)}


def reply(node: int, value: float | None, examples: int = 1) -> Message:
    set_identity(run_id=1)
    message = Message(RecordDict(), node, "train")
    set_message_id(message, str(node))
    if value is None:
        return Message(Error(2, "it failed"), reply_to=message)
    arrays = model_arrays.to_record({"w": np.full(2, value, np.float32)})
    metrics = MetricRecord({"num-examples": examples})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def sums(mechanism: ServerMechanism | None = None, **more: Any) -> RoundSums:
    held: dict[str, Any] = {"masked": None, "weight_by_examples": True, "whole_models": False}
    return RoundSums(NAMES, guard=None, mechanism=mechanism, step=ServerOptimizer(), **held | more)


def record() -> RoundRecord:
    return RoundRecord(server_round=1, cohort=["ann", "bob", "eve"])


@pytest.mark.parametrize(("weighted", "mean"), [(True, 2.5), (False, 2.0)])
def test_a_mean_is_weighted_or_not_and_leaves_failures_out(weighted: bool, mean: float) -> None:
    replies = [reply(2, 3.0, examples=3), reply(1, 1.0, examples=1), reply(3, None)]
    seen = record()
    average, contributed = sums(weight_by_examples=weighted).mean(seen, MODEL, replies)
    assert average is not None
    assert (average["w"].tolist(), contributed) == ([mean, mean], 2)
    assert list(seen.failed) == ["eve"]


def test_a_sum_is_bounded_and_free_of_order() -> None:
    event = PrivacyEvent.full(unit="client", noise_multiplier=1.0)
    mechanism = ClientUpdates(event, max_norm=1.0, expected_cohort=3.0)
    found = []
    for order in ([1, 2, 3], [3, 1, 2]):
        replies = [reply(node, 1e6 if node == 2 else 0.1) for node in order]
        total, contributed = sums(mechanism).total(record(), MODEL, replies, mechanism)
        assert contributed == 3
        found.append(total["w"])
    assert np.array_equal(*found)
    assert np.linalg.norm(found[0] * mechanism.sums.grid.step) <= 1.0 + 2 * 0.15


def test_nobody_is_a_sum_of_nothing_and_no_mean() -> None:
    event = PrivacyEvent.full(unit="client", noise_multiplier=1.0)
    mechanism = ClientUpdates(event, max_norm=1.0, expected_cohort=3.0)
    total, contributed = sums(mechanism).total(record(), MODEL, [], mechanism)
    assert (total["w"].tolist(), contributed) == ([0, 0], 0)
    assert sums().mean(record(), MODEL, []) == (None, 0)
