"""A pool of warm processes, each of which runs one job after the other.

Processes are forked after everything heavy is imported, and keep what they have loaded for their
next job. One that dies costs the job that it had, and is replaced.
"""

from __future__ import annotations

import functools
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from dp_fedmed.engines.forked import Forked, answer, jobs_from

#: Runs a job in a worker; it is given the job and a function that reports progress to the pool.
Work = Callable[[Any, Callable[[Any], None]], Any]
SECONDS_TO_STOP = 120.0


@dataclass(frozen=True)
class Started:
    """A worker has taken a job."""

    job: Any


@dataclass(frozen=True)
class Progress:
    """A job reports how far it is."""

    job: Any
    message: Any


@dataclass(frozen=True)
class Ended:
    """A job has ended: with what its work returned, or with its process (`died` says how).

    What is returned is None if it was interrupted.
    """

    job: Any
    returned: Any = None
    died: str = ""


Event = Started | Progress | Ended


@dataclass
class _PoolProcess(Forked):
    job: Any = None


class JobPool:
    """Runs jobs on so many processes, and says what happens to them.

    Args:
        work: what a worker does with a job; jobs and what it returns travel through pipes.
        workers: how many processes.
    """

    def __init__(self, work: Work, *, workers: int) -> None:
        self.work = work
        self._workers: list[_PoolProcess | None] = [None] * workers

    def run(self, jobs: Sequence[Any]) -> Iterator[Event]:
        """Every event until the last job has ended, in the order in which they happen."""
        waiting = deque(jobs)
        while waiting or self._busy():
            for index in range(len(self._workers)):
                worker = self._workers[index]
                if waiting and (worker is None or worker.job is None):
                    job = waiting.popleft()
                    self._give(index, job)
                    yield Started(job)
            yield from self._collect()

    def interrupt(self) -> Iterator[Event]:
        """Ask running jobs to stop, and wait for them: what each comes to is an event."""
        for worker in self._busy():
            os.kill(worker.process.pid or 0, signal.SIGINT)
        while self._busy():
            events = list(self._collect(SECONDS_TO_STOP))
            if not events:
                return
            yield from events

    def close(self) -> None:
        """End every process; one that still has a job is killed."""
        for worker in self._workers:
            if worker is not None:
                self._end(worker)
        self._workers = [None] * len(self._workers)

    def _busy(self) -> list[_PoolProcess]:
        return [worker for worker in self._workers if worker is not None and worker.job is not None]

    def _give(self, index: int, job: Any) -> None:
        worker = self._workers[index]
        if worker is not None:
            try:
                worker.connection.send(job)
            except OSError:  # it died while it had nothing to do
                self._end(worker)
                worker = None
        if worker is None:
            worker = self._workers[index] = self._start()
            worker.connection.send(job)
        worker.job = job

    def _start(self) -> _PoolProcess:
        others = [worker.connection for worker in self._workers if worker is not None]
        return _PoolProcess.start(functools.partial(_live, self.work), others, own_group=True)

    def _end(self, worker: _PoolProcess) -> None:
        worker.connection.close()
        if worker.job is not None:
            worker.process.kill()
        worker.process.join(SECONDS_TO_STOP)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()

    def _collect(self, timeout: float | None = None) -> Iterator[Event]:
        """Events of the busy workers; waits for the first."""
        busy = {worker.connection: worker for worker in self._busy()}
        for connection in wait(list(busy), timeout):
            worker = busy[connection]  # type: ignore[index]
            try:
                kind, message = worker.connection.recv()
            except (EOFError, OSError):
                yield self._died(worker)
                continue
            if kind == "progress":
                yield Progress(worker.job, message)
            else:
                job, worker.job = worker.job, None
                yield Ended(job, message)

    def _died(self, worker: _PoolProcess) -> Ended:
        """Replace a worker that has died; its job has ended with it."""
        worker.process.join()
        worker.connection.close()
        self._workers[self._workers.index(worker)] = None
        return Ended(worker.job, died=f"its process died ({worker.how_it_died()})")


def _live(work: Work, connection: Connection) -> None:
    """Do one job after the other; Ctrl-C from the pool interrupts the job at hand."""
    for job in jobs_from(connection):
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            found = work(job, lambda message: connection.send(("progress", message)))
        except KeyboardInterrupt:
            found = None
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        answer(connection, ("ended", found))
