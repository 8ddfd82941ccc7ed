"""Ctrl-C or SIGTERM asks to stop after the round, a further Ctrl-C at once; both resumable."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class StopRequest:
    """What the user has asked for so far. Before and after training, a stop is at once.

    >>> stop = StopRequest()
    >>> with stop.during_rounds(lambda: None):
    ...     stop.ask()
    ...     stop.after_round, stop.at_once
    (True, False)
    """

    def __init__(self) -> None:
        self.after_round = self.at_once = False
        self._notify: Callable[[], None] | None = None

    def ask(self) -> None:
        """One more Ctrl-C or SIGTERM."""
        self.at_once = self.after_round or self._notify is None
        self.after_round = True
        if not self.at_once and self._notify is not None:
            # Not in the signal handler: what it interrupted may hold the lock of a stream.
            threading.Thread(target=self._notify, daemon=True).start()

    @contextmanager
    def during_rounds(self, notify: Callable[[], None]) -> Iterator[None]:
        """While this lasts, the first request waits for the end of a round.

        Args:
            notify: called when it is made, in a thread of its own.
        """
        self._notify = notify
        try:
            yield
        finally:
            self._notify = None


@contextmanager
def on_ctrl_c(stop: StopRequest, *, in_thread: bool = False) -> Iterator[None]:
    """Turn Ctrl-C and SIGTERM into requests; a request for at once is a KeyboardInterrupt.

    A process that ignores one of them, as a shell's background job does, goes on ignoring it.

    Args:
        stop: what is asked.
        in_thread: the run is in another thread, which looks at `stop` itself and must not be left
            behind by an exception here; one request more then ends the process.
    """

    def handle(number: int, frame: object) -> None:
        was_at_once = stop.at_once
        if number == signal.SIGTERM and stop.after_round and not was_at_once:
            return  # `timeout` sends it to the process and again to its group
        stop.ask()
        if stop.at_once and not in_thread:
            raise KeyboardInterrupt
        if was_at_once:
            os._exit(130)

    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                before[number] = signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
