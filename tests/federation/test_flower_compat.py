"""What stands in for Flower's private ways does as they do."""

from __future__ import annotations

import numpy as np
from flwr.app import Array, Message, RecordDict

from dp_fedmed.federation.flower_compat import (
    make_array,
    make_context,
    set_identity,
    set_message_id,
)


def test_an_array_is_flowers_own() -> None:
    value = np.arange(6, dtype=np.float32).reshape(2, 3)
    theirs = Array(value)
    ours = make_array(theirs.dtype, tuple(theirs.shape), theirs.data)
    assert (ours.dtype, tuple(ours.shape), ours.stype) == ("float32", (2, 3), theirs.stype)
    assert np.array_equal(ours.numpy(), value)


def test_messages_can_be_built_and_numbered_here() -> None:
    set_identity(run_id=7)
    message = Message(RecordDict(), dst_node_id=3, message_type="train")
    assert (message.metadata.run_id, message.metadata.src_node_id) == (7, 1)
    set_message_id(message, "42")
    assert message.metadata.message_id == "42"
    assert Message(RecordDict(), reply_to=message).metadata.reply_to_message_id == "42"


def test_a_context_has_a_state_of_its_own() -> None:
    first, second = (make_context(7, node, {"partition-id": node}) for node in (1, 2))
    assert (first.run_id, first.node_id, first.node_config) == (7, 1, {"partition-id": 1})
    assert first.state is not second.state
