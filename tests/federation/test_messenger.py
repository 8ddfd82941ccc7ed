"""Messages of a round: what each client is sent, and whose answers are passed on."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Error, Message, RecordDict

from dp_fedmed.federation import arrays as model_arrays
from dp_fedmed.federation.exchange import InProcessGrid
from dp_fedmed.federation.flower_compat import set_identity, set_message_id
from dp_fedmed.federation.messages import RoundOrder
from dp_fedmed.federation.messenger import Messenger
from dp_fedmed.federation.server_optimizer import ServerOptimizer

NODES = {"ann": 1, "bob": 2, "eve": 3}
ORDER = RoundOrder(input_shape=(2,), num_classes=2, run="r", streams="s", phase=0, style="none")


class Echo(InProcessGrid):
    """Answers every message with its own content; eve fails."""

    def partition_ids(self) -> dict[int, int]:
        return {node: node for node in NODES.values()}

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        batch = list(messages)
        for number, message in enumerate(batch):
            set_message_id(message, str(number))
        for message in batch:
            if message.metadata.dst_node_id == NODES["eve"]:
                yield Message(Error(2, "lost /home/jane/x.csv"), reply_to=message)
            else:
                yield Message(message.content, reply_to=message)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


Echo.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]


def test_each_client_is_sent_the_model_the_order_and_the_round() -> None:
    set_identity(run_id=1)
    mail = Messenger(NODES, step=ServerOptimizer(), order=ORDER)
    model = model_arrays.to_record({"w": np.ones(2, np.float32)})
    messages = mail.messages("train", ["ann", "eve"], 7, model, ConfigRecord({"lr": 0.5}))
    assert [message.metadata.dst_node_id for message in messages] == [1, 3]
    for message in messages:
        sent = message.content.config_records["config"]
        assert (sent["round"], sent["run"], sent["lr"]) == (7, "r", 0.5)
        assert message.content.array_records["arrays"] is model
        assert message.metadata.group_id == "7"


def test_who_fails_has_no_answer_and_one_warning_without_a_path(caplog: Any) -> None:
    set_identity(run_id=1)
    mail = Messenger(NODES, step=ServerOptimizer())
    shown = logging.getLogger("shown")
    ask = mail.ask(Echo(), 3, None, shown)
    asked = {name: RecordDict({"masking": ConfigRecord({"to": name})}) for name in NODES}
    with caplog.at_level(logging.WARNING, "shown"):
        answers = dict(ask("query.keys", asked))
    assert {name: said.config_records["masking"]["to"] for name, said in answers.items()} == {
        "ann": "ann",
        "bob": "bob",
    }
    (line,) = caplog.messages
    assert line == "round 3: eve dropped out: lost <path>"
