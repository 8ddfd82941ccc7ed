"""Makes the messages of a round, sends them, and gives the replies by the clients' names."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from dp_fedmed.errors import NodeError
from dp_fedmed.federation import arrays as model_arrays
from dp_fedmed.federation.exchange import exchange
from dp_fedmed.federation.failures import from_peer
from dp_fedmed.federation.messages import RoundOrder
from dp_fedmed.federation.privacy_guard import PrivacyGuard
from dp_fedmed.federation.secure_aggregation.attempt import Ask
from dp_fedmed.federation.stopping import StopRequest
from dp_fedmed.learning import ServerStep
from dp_fedmed.privacy.mechanisms.base import ServerMechanism

POLL_SECONDS = 0.2


class Messenger:
    """Reaches the clients of a run.

    Args:
        nodes: each client's Flower node by its name.
        step: says what of the model a client is sent.
        order: what clients are sent besides the model.
        guard: completes a round order by what a client is to do for its records.
        mechanism: of the server; says what noise is left to clients.
        stop: what the user asks for while the run lasts.
    """

    def __init__(
        self,
        nodes: Mapping[str, int],
        *,
        step: ServerStep,
        order: RoundOrder | None = None,
        guard: PrivacyGuard | None = None,
        mechanism: ServerMechanism | None = None,
        stop: StopRequest | None = None,
    ) -> None:
        self.nodes, self.step, self.stop = nodes, step, stop
        self.order, self.guard, self.mechanism = order, guard, mechanism
        self.names = {node_id: name for name, node_id in nodes.items()}
        self._unasked: set[tuple[str, int]] = set()  # warned of in this run, by log and node

    def messages(
        self,
        message_type: str,
        names: Iterable[str],
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
    ) -> list[Message]:
        """One message to each of these clients, with its part of the model."""
        messages = []
        whole = None if self.step.is_shared else model_arrays.from_record(arrays)
        for name in names:
            own = arrays
            if whole is not None:
                own = model_arrays.to_record(dict(self.step.part(whole, name)))
            sent = self._order(name, server_round, message_type == "train")
            content = RecordDict({"arrays": own, "config": ConfigRecord({**config, **sent})})
            node = self.nodes[name]
            messages.append(Message(content, node, message_type, group_id=str(server_round)))
        return messages

    def _order(self, name: str, server_round: int, is_training: bool) -> ConfigRecord:
        """What a client is sent besides the model."""
        if self.order is None:
            return ConfigRecord({"server-round": server_round})
        order = replace(self.order, server_round=server_round)
        if self.guard is not None and is_training:
            order = self.guard.complete(order, name, self.mechanism)
            order = replace(order, ledger=self.guard.ledger_length)
        return order.to_record()

    def exchange(
        self,
        grid: Grid,
        messages: Iterable[Message],
        timeout: float | None,
        shown: logging.Logger,
    ) -> Iterable[Message]:
        """Replies to messages; what is odd about them is said where it may be."""
        return exchange(
            grid,
            messages,
            timeout=timeout,
            stop=self.stop,
            names=self.names,
            shown=shown,
            warned=self._unasked,
        )

    def ask(
        self, grid: Grid, server_round: int, timeout: float | None, shown: logging.Logger
    ) -> Ask:
        """Sends clients records by name; gives the answers of those that did not fail."""

        def ask(kind: str, asked: Mapping[str, RecordDict]) -> Iterator[tuple[str, RecordDict]]:
            number = str(server_round)
            messages = [Message(c, self.nodes[n], kind, group_id=number) for n, c in asked.items()]
            for reply in self.exchange(grid, messages, timeout, shown):
                name = self.names[reply.metadata.src_node_id]
                if reply.has_error():
                    said = from_peer(reply.error.reason)
                    shown.warning("round %d: %s dropped out: %s", server_round, name, said)
                else:
                    yield name, reply.content

        return ask


def names_of_nodes(grid: Grid, expected: int, *, timeout: float | None) -> dict[str, int]:
    """Nodes of an app that is not ours, by names that hold for one run.

    Raises:
        NodeError: if too few are connected in time.
    """
    deadline = time.monotonic() + (3600.0 if timeout is None else timeout)
    while len(nodes := sorted(grid.get_node_ids())) < expected:
        if time.monotonic() > deadline:
            raise NodeError(f"{len(nodes)} of {expected} nodes connected within {timeout:g} s")
        time.sleep(POLL_SECONDS)
    return {f"node-{node_id}": node_id for node_id in nodes}
