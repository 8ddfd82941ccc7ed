"""Forked worker processes: started, fed through a pipe, and never left behind.

Forked after everything heavy is imported, they share what is loaded. Both pools stand on this: the
workers of a grid, and the jobs of a sweep.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Self

_PR_SET_PDEATHSIG = 1


@dataclass
class Forked:
    """A worker process, seen from its pool: what is sent is a job, what is received an answer."""

    process: BaseProcess
    connection: Connection

    @classmethod
    def start(
        cls,
        live: Callable[[Connection], None],
        siblings: Iterable[Connection],
        *,
        own_group: bool = False,
        daemon: bool = False,
    ) -> Self:
        """Fork a worker.

        Args:
            live: its whole life, given its end of the pipe.
            siblings: our ends of other workers' pipes, which it must not keep open.
            own_group: a terminal's Ctrl-C goes to the pool alone, which passes it on.
            daemon: multiprocessing ends it with this process.
        """
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        inherited = [*siblings, ours]
        process = context.Process(
            target=_enter, args=(live, theirs, inherited, own_group), daemon=daemon
        )
        gc.freeze()  # a worker's collector must not touch, and so copy, what it shares with us
        process.start()
        gc.unfreeze()
        theirs.close()
        return cls(process, ours)

    def how_it_died(self) -> str:
        """Its exit code, or the signal that killed it; after it was joined."""
        code = self.process.exitcode or 0
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _enter(
    live: Callable[[Connection], None],
    connection: Connection,
    inherited: list[Connection],
    own_group: bool,
) -> None:
    if own_group:
        os.setpgid(0, 0)
        _die_with_parent()
    # The pool gets Ctrl-C and SIGTERM too, and says what to do.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for other in inherited:  # else this worker would keep its siblings' pipes open after the pool
        other.close()
    live(connection)


def jobs_from(connection: Connection) -> Iterator[Any]:
    """Jobs as they come; the process ends when the pool's end closes."""
    while True:
        try:
            job = connection.recv()
        except (EOFError, OSError):
            os._exit(0)
        yield job


def answer(connection: Connection, value: Any) -> None:
    """Send an answer; the process ends if nobody is there to take it."""
    try:
        connection.send(value)
    except OSError:
        os._exit(0)


def _die_with_parent() -> None:
    """On Linux, end this worker when the pool is killed."""
    if sys.platform != "linux":
        return
    import ctypes

    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before this was set
        os._exit(1)
