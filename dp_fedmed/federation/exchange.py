"""Send a round's messages and collect the replies, without waiting for nodes that are gone.

Flower's own `send_and_receive` waits for every reply until its time-out; a hospital that is
switched off in the middle of a round would hold up all others.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator

from flwr.app import Message
from flwr.serverapp import Grid

from dp_fedmed.federation.local_grid import LocalGrid
from dp_fedmed.federation.stopping import StopRequest

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.05
ABSENCE_SECONDS = 30.0
ENGINE_ERROR = 0  # Flower's code for a failure of the engine itself, not of the ClientApp


class EngineLost(RuntimeError):
    """A worker of the engine is gone, and the engine does not replace it."""


def exchange(
    grid: Grid,
    messages: Iterable[Message],
    *,
    timeout: float | None,
    stop: StopRequest | None = None,
) -> Iterable[Message]:
    """Replies to messages, as they come; nodes that are gone, late or silent have none.

    Raises:
        KeyboardInterrupt: if the user asks to stop at once.
        EngineLost: if the engine itself fails.
    """
    if isinstance(grid, LocalGrid):
        return grid.send_and_receive(messages, timeout=timeout)
    return _poll(grid, list(messages), timeout, stop)


def _poll(
    grid: Grid, messages: list[Message], timeout: float | None, stop: StopRequest | None
) -> Iterator[Message]:
    waiting = dict(zip(grid.push_messages(messages), messages, strict=False))
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
