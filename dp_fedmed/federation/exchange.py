"""Send a round's messages and collect the replies, without waiting for nodes that are gone.

Flower's own `send_and_receive` waits for every reply until its time-out; a hospital that is
switched off in the middle of a round would hold up all others.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from flwr.app import Error, Message
from flwr.serverapp import Grid

from dp_fedmed.errors import EngineLost
from dp_fedmed.federation.flower_compat import SERVER_NODE_ID
from dp_fedmed.federation.messages import ENGINE_ERROR
from dp_fedmed.federation.stopping import StopRequest

if TYPE_CHECKING:
    from dp_fedmed.federation.partial_sums import RoundSum

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.05
ABSENCE_SECONDS = 30.0
OFFLINE = "it is offline: see whether its SuperNode runs and reaches the SuperLink"


class InProcessGrid(Grid, ABC):
    """A grid whose nodes are of this process' own making: their names are known without asking.

    It answers lazily and in the order of the messages, and replaces a worker that is lost.
    """

    @abstractmethod
    def partition_ids(self) -> dict[int, int]:
        """Each node's partition."""

    @property
    def adds_up(self) -> bool:
        """Whether its workers can add up their clients' answers before they reply."""
        return False

    def send_and_sum(
        self, messages: Iterable[Message], total: RoundSum, *, timeout: float | None = None
    ) -> None:
        """Send messages whose replies are added up in `total`, and noted there."""
        raise NotImplementedError


def exchange(
    grid: Grid,
    messages: Iterable[Message],
    *,
    timeout: float | None,
    stop: StopRequest | None = None,
    names: Mapping[int, str] = MappingProxyType({}),
    shown: logging.Logger = logger,
    warned: set[tuple[str, int]] | None = None,
) -> Iterable[Message]:
    """Replies to messages, as they come; nodes that are late or silent have none.

    Whatever else comes is left out: a second reply, one to an older message, or one to a message
    that went to somebody else.

    Args:
        grid: where the nodes are.
        messages: one per node.
        timeout: seconds to wait for all of them.
        stop: what the user asks for.
        names: of the nodes, for what is said about them.
        shown: where it is said; it tells who was asked.
        warned: by whom something odd was said already, and where; added to.

    Raises:
        KeyboardInterrupt: if the user asks to stop at once.
        EngineLost: if the engine itself fails.
    """
    sent = list(messages)
    warned = set() if warned is None else warned
    if isinstance(grid, InProcessGrid):
        replies: Iterable[Message] = grid.send_and_receive(sent, timeout=timeout)

        def numbered() -> dict[str, Message]:
            return {message.metadata.message_id: message for message in sent}

        return _asked_for(numbered, replies, names, shown, warned)
    waiting = dict(zip(grid.push_messages(sent), sent, strict=False))
    asked = dict(waiting)
    return _asked_for(lambda: asked, _poll(grid, waiting, timeout, stop), names, shown, warned)


def _asked_for(
    sent: Callable[[], dict[str, Message]],
    replies: Iterable[Message],
    names: Mapping[int, str],
    shown: logging.Logger,
    warned: set[tuple[str, int]],
) -> Iterator[Message]:
    """One reply to each message, from the node that it went to; of others, one warning a node.

    Flower itself answers for a node that is offline; that it does counts as the node's failure.

    Args:
        sent: the messages by id; asked for with the first reply, when all have one.
        replies: whatever came.
        names: of the nodes.
        shown: where warnings go.
        warned: where and for whom there was one already.
    """
    asked: dict[str, Message] | None = None
    for reply in replies:
        asked = sent() if asked is None else asked
        node = reply.metadata.src_node_id
        message = asked.get(reply.metadata.reply_to_message_id)
        if message is not None and message.metadata.dst_node_id == node:
            del asked[reply.metadata.reply_to_message_id]
            yield reply
        elif message is not None and node == SERVER_NODE_ID and reply.has_error():
            del asked[reply.metadata.reply_to_message_id]
            yield Message(Error(reply.error.code, OFFLINE), reply_to=message)
        elif (shown.name, node) not in warned:
            warned.add((shown.name, node))
            shown.warning("%s sent a reply that nobody asked for", names.get(node, f"node {node}"))


def _poll(
    grid: Grid,
    waiting: dict[str, Message],
    timeout: float | None,
    stop: StopRequest | None,
) -> Iterator[Message]:
    begun = time.monotonic()
    seen = dict.fromkeys(waiting, begun)
    next_look = begun + 1.0
    while waiting:
        now = time.monotonic()
        if stop is not None and stop.at_once:
            raise KeyboardInterrupt
        if timeout is not None and now - begun > timeout:
            return
        for reply in grid.pull_messages(list(waiting)):
            waiting.pop(reply.metadata.reply_to_message_id, None)
            if reply.has_error() and reply.error.code == ENGINE_ERROR:
                raise EngineLost("a worker of the engine was lost and is not replaced")
            yield reply
        if now > next_look:
            _forget_absent(grid, waiting, seen, now)
            next_look = now + 1.0
        time.sleep(POLL_SECONDS)


def _forget_absent(
    grid: Grid, waiting: dict[str, Message], seen: dict[str, float], now: float
) -> None:
    """Stop waiting for nodes that have been disconnected for a while."""
    connected = set(grid.get_node_ids())
    for message_id, message in list(waiting.items()):
        if message.metadata.dst_node_id in connected:
            seen[message_id] = now
        elif now - seen[message_id] > ABSENCE_SECONDS:
            del waiting[message_id]
