"""Replies as they come: one to each message, from the node that it went to."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from flwr.app import Error, Message, RecordDict

from dp_fedmed.errors import EngineLost
from dp_fedmed.federation.exchange import OFFLINE, exchange
from dp_fedmed.federation.flower_compat import SERVER_NODE_ID, set_identity, set_message_id
from dp_fedmed.federation.messages import ENGINE_ERROR
from dp_fedmed.federation.stopping import StopRequest


class Post:
    """A grid whose nodes have answered already."""

    def __init__(self, nodes: list[int]) -> None:
        set_identity(run_id=7)
        self.sent = [Message(RecordDict(), dst_node_id=n, message_type="train") for n in nodes]
        for number, message in enumerate(self.sent):
            set_message_id(message, str(number))
        self.replies: list[Message] = []

    def answer(self, number: int, node: int | None = None, error: int | None = None) -> None:
        content: Any = RecordDict() if error is None else Error(error, "why")
        reply = Message(content, reply_to=self.sent[number])
        if node is not None:
            reply.metadata.__dict__["_src_node_id"] = node
        self.replies.append(reply)

    def push_messages(self, messages: list[Message]) -> list[str]:
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, message_ids: list[str]) -> list[Message]:
        found, self.replies = self.replies, []
        return found

    def get_node_ids(self) -> list[int]:
        return [message.metadata.dst_node_id for message in self.sent]

    def collect(self, **more: Any) -> list[Message]:
        return list(exchange(self, self.sent, timeout=0.2, **more))  # type: ignore[arg-type]


def test_each_message_has_one_reply_and_late_ones_have_none() -> None:
    post = Post([5, 6, 7])
    post.answer(0)
    post.answer(2)
    found = post.collect()
    assert [reply.metadata.src_node_id for reply in found] == [5, 7]


def test_replies_that_nobody_asked_for_are_left_out_and_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    post = Post([5, 6])
    post.answer(0)
    post.answer(0)
    post.answer(1, node=5)
    with caplog.at_level(logging.WARNING, logger="dp_fedmed"):
        found = post.collect(names={5: "north"})
    assert [reply.metadata.src_node_id for reply in found] == [5]
    assert caplog.messages == ["north sent a reply that nobody asked for"]


def test_flower_answers_for_a_node_that_is_offline() -> None:
    post = Post([5])
    post.answer(0, node=SERVER_NODE_ID, error=1)
    (reply,) = post.collect()
    assert reply.has_error()
    assert reply.error.reason == OFFLINE


def test_a_lost_engine_and_a_wish_to_stop_end_it() -> None:
    post = Post([5])
    post.answer(0, error=ENGINE_ERROR)
    with pytest.raises(EngineLost):
        post.collect()
    stop = StopRequest()
    stop.at_once = True
    with pytest.raises(KeyboardInterrupt):
        Post([5]).collect(stop=stop)
