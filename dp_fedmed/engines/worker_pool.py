"""Worker processes that run a ClientApp: replaced when they die, stopped when they are late.

Workers are forked, so that data loaded before are shared and a pool is up in milliseconds. Each
holds up to two jobs: one that it computes and one that waits, so that it never idles. Where a round
is a sum, each client that was reported as added up is in it once, whatever became of its worker.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from typing import Any

from flwr.app import ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from dp_fedmed.engines.forked import Forked
from dp_fedmed.engines.transport import Arena, Parcel, put_together, take_apart
from dp_fedmed.engines.worker import Answer, Broadcast, Task, work
from dp_fedmed.federation.partial_sums import Facts, RoundSum

BUFFERED_BYTES = 256 * 2**20
SLOTS = 2


@dataclass(frozen=True)
class Job:
    """One message for one client."""

    node_id: int
    node_config: dict[str, Any]
    message: Message
    state: RecordDict


@dataclass(frozen=True)
class Outcome:
    """A client's reply, or what is known of one that was added up, or why there is none.

    Its state afterwards goes with the first two.
    """

    content: RecordDict | None = None
    state: RecordDict | None = None
    error: str | None = None
    lost: bool = False  # with its worker, through no fault of the client's
    facts: Facts | None = None


@dataclass
class _Batch:
    """Jobs that are run together, and how far they have come."""

    jobs: Sequence[Job]
    shared: ArrayRecord | None
    broadcast: Broadcast | None
    deadline: float | None
    number: int
    total: RoundSum | None = None
    done: dict[int, Outcome] = field(default_factory=dict)
    waiting: deque[int] = field(default_factory=deque)


class WorkerPool:
    """A fixed number of worker processes for one ClientApp."""

    def __init__(self, app: ClientApp, *, workers: int, run_id: int) -> None:
        self.app, self.run_id = app, run_id
        self._workers: list[_Worker | None] = [None] * workers
        self._shared, self._room = Arena(0), 0
        self._numbers = itertools.count(1)

    def run(
        self, jobs: Sequence[Job], *, shared: ArrayRecord | None, timeout: float | None = None
    ) -> Iterator[Outcome]:
        """Outcomes in the order of the jobs, as soon as each is known.

        Args:
            jobs: what to do.
            shared: an ArrayRecord that many of the messages hold; it is sent once.
            timeout: seconds after which unfinished jobs fail and their workers are stopped.
        """
        batch = self._batch(jobs, shared, timeout, None)
        window = max(4 * len(self._workers), BUFFERED_BYTES // max(1, self._shared.size))
        for position in range(len(jobs)):
            while position not in batch.done:
                self._dispatch(batch, position + window)
                self._collect(batch)
            yield batch.done.pop(position)

    def add_up(
        self,
        jobs: Sequence[Job],
        total: RoundSum,
        *,
        shared: ArrayRecord | None,
        timeout: float | None = None,
    ) -> list[Outcome]:
        """Add the answers up in `total`, in whatever order they come; outcomes as the jobs are.

        Raises:
            RuntimeError: if a worker could not add up, which is no client's fault.
        """
        batch = self._batch(jobs, shared, timeout, total)
        while len(batch.done) < len(jobs):
            self._dispatch(batch, len(jobs))
            self._collect(batch)
        for worker in self._workers:
            if worker is not None:
                worker.hand_in(total)
        return [batch.done[position] for position in range(len(jobs))]

    def close(self) -> None:
        """Stop every worker."""
        for worker in self._workers:
            if worker is not None:
                worker.stop()
        self._workers = [None] * len(self._workers)
        self._shared.close()

    def _batch(
        self,
        jobs: Sequence[Job],
        shared: ArrayRecord | None,
        timeout: float | None,
        total: RoundSum | None,
    ) -> _Batch:
        deadline = None if timeout is None else time.monotonic() + timeout
        number = next(self._numbers)
        broadcast = self._broadcast(shared, number, 0 if total is None else 8 * total.size)
        for worker in self._workers:
            if worker is not None:
                worker.held = None  # of a batch that was broken off
        waiting = deque(range(len(jobs)))
        return _Batch(jobs, shared, broadcast, deadline, number, total, waiting=waiting)

    def _broadcast(self, shared: ArrayRecord | None, number: int, summed: int) -> Broadcast | None:
        """Write the shared arrays where every worker reads them.

        Arrays or sums that are larger than those before need new workers.
        """
        parcel = take_apart(RecordDict() if shared is None else RecordDict({"shared": shared}))
        if not self._shared.fits(parcel) or summed > self._room:
            self.close()
            self._shared = Arena(max(parcel.size, self._shared.size))
            self._room = max(summed, self._room, self._shared.size)
        if shared is None:
            return None
        return number, parcel.entries, self._shared.write(parcel.buffers)

    def _dispatch(self, batch: _Batch, limit: int) -> None:
        jobs, waiting = batch.jobs, batch.waiting
        for depth in range(SLOTS):
            for index in range(len(self._workers)):
                if not waiting or waiting[0] >= limit:
                    return
                worker = self._worker(index)
                if len(worker.jobs) != depth:
                    continue
                parcel = take_apart(jobs[waiting[0]].message.content, batch.shared)
                if parcel.buffers and worker.jobs:
                    continue  # bytes that go by pipe wait until the worker is listening
                position = waiting.popleft()
                try:
                    worker.give(position, jobs[position], parcel, batch)
                except OSError:  # it is dead: this job waits, `_collect` sees to those before it
                    waiting.appendleft(position)
                    if not worker.jobs:
                        self._retire(index, batch)

    def _worker(self, index: int) -> _Worker:
        worker = self._workers[index]
        if worker is None:
            others = [w.connection for w in self._workers if w is not None]
            worker = _Worker.start(self.app, self.run_id, self._shared, self._room, others)
            self._workers[index] = worker
        return worker

    def _collect(self, batch: _Batch) -> None:
        """Wait for one event: a reply, a worker's death, or the deadline."""
        busy = {w.connection: i for i, w in enumerate(self._workers) if w is not None and w.jobs}
        if not busy:
            return  # every worker died idle: the next dispatch starts new ones
        deadline = batch.deadline
        remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready = wait(list(busy), remaining)
        if not ready:
            self._give_up(batch)
        for connection in ready:
            index = busy[connection]  # type: ignore[index]
            worker = self._workers[index]
            if worker is None:
                continue
            try:
                position, outcome = worker.take()
                batch.done[position] = outcome
            except (EOFError, OSError):
                position = worker.jobs.popleft()
                batch.waiting.extendleft(reversed(worker.jobs))  # the job behind it never started
                self._retire(index, batch)
                died = f"its worker process died (exit code {worker.process.exitcode})"
                batch.done[position] = Outcome(error=died, lost=True)

    def _give_up(self, batch: _Batch) -> None:
        """The deadline has passed: everything unfinished fails, busy workers are stopped."""
        late = Outcome(error="timed out")
        for index, worker in enumerate(self._workers):
            if worker is not None and worker.jobs:
                batch.done.update(worker.last_words())
                batch.done.update(dict.fromkeys(worker.jobs, late))
                self._retire(index, batch)
        batch.done.update(dict.fromkeys(batch.waiting, late))
        batch.waiting.clear()

    def _retire(self, index: int, batch: _Batch) -> None:
        """Take over what a worker has added up, and end it."""
        worker, self._workers[index] = self._workers[index], None
        if worker is not None:
            if batch.total is not None:
                worker.hand_in(batch.total)
            worker.stop()


@dataclass
class _Worker:
    """One process, seen from the pool."""

    process: BaseProcess
    connection: Connection
    slots: list[Arena]
    kill: Finalize
    jobs: deque[int] = field(default_factory=deque)
    given: int = 0
    taken: int = 0
    adder: int = 0  # the number of the batch that it adds up
    held: int | None = None  # the slot with the sum that it last reported

    @classmethod
    def start(
        cls,
        app: ClientApp,
        run_id: int,
        shared: Arena,
        room: int,
        others: list[Connection],
    ) -> _Worker:
        slots = [Arena(max(room, shared.size)) for _ in range(SLOTS)]
        live = functools.partial(work, app, run_id, shared, slots)
        forked = Forked.start(live, others, daemon=True)
        process = forked.process
        # At our exit multiprocessing asks by SIGTERM, which workers ignore, and waits: kill before.
        return cls(process, forked.connection, slots, Finalize(None, process.kill, exitpriority=0))

    def give(self, position: int, job: Job, parcel: Parcel, batch: _Batch) -> None:
        """Send one job."""
        meta, total = job.message.metadata, batch.total
        asked = adder = None
        if total is not None:
            asked = total.asked(job.node_id)
            if self.adder != batch.number:
                adder, self.held = total.packed, None
        task = Task(
            slot=self.given % SLOTS,
            header=(job.node_id, job.node_config, meta.message_type, meta.group_id, meta.ttl),
            content=parcel,
            state=take_apart(job.state),
            broadcast=batch.broadcast,
            asked=asked,
            adder=adder,
        )
        self.connection.send(task)
        if adder is not None:
            self.adder = batch.number
        self.jobs.append(position)
        self.given += 1

    def take(self) -> tuple[int, Outcome]:
        """The outcome of the oldest job."""
        said: Answer = self.connection.recv()
        slot = self.slots[self.taken % SLOTS]
        self.taken += 1
        position = self.jobs.popleft()
        if said.broken is not None:
            raise RuntimeError(f"a worker could not add up clients' answers: {said.broken}")
        self.held = said.held
        if said.error is not None or said.state is None:
            return position, Outcome(error=said.error)
        state = put_together(said.state.entries, said.state.buffers)
        if said.facts is not None:
            return position, Outcome(facts=said.facts, state=state)
        buffers = slot.read(said.lengths) if said.inline is None else said.inline
        return position, Outcome(content=put_together(said.entries, buffers), state=state)

    def last_words(self) -> dict[int, Outcome]:
        """Kill it, and take what it had finished: its sum is the one that it reported last."""
        self.kill()
        self.process.join()
        found = {}
        while self.jobs:
            try:
                position, outcome = self.take()
            except (EOFError, OSError):
                break
            found[position] = outcome
        return found

    def hand_in(self, total: RoundSum) -> None:
        """Add what this worker has added up, once."""
        if self.held is not None:
            total.add(self.slots[self.held].integers(total.size))
            self.held = None

    def stop(self) -> None:
        self.connection.close()
        self.kill()
        self.process.join()
        for slot in self.slots:
            slot.close()
