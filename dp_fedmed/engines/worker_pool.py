"""Worker processes that run a ClientApp: replaced when they die, stopped when they are late.

Workers are forked, so that data loaded before are shared and a pool is up in milliseconds. Each
holds up to two jobs: one that it computes and one that waits, so that it never idles.
"""

from __future__ import annotations

import functools
import logging
import mmap
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from dp_fedmed.engines.forked import Forked, answer, jobs_from
from dp_fedmed.federation import flower_compat
from dp_fedmed.federation.failures import describe_failure
from dp_fedmed.federation.flower_compat import make_array

logger = logging.getLogger(__name__)

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
    """A client's reply and its state afterwards, or why there is none."""

    content: RecordDict | None = None
    state: RecordDict | None = None
    error: str | None = None
    lost: bool = False  # with its worker, through no fault of the client's


class WorkerPool:
    """A fixed number of worker processes for one ClientApp."""

    def __init__(self, app: ClientApp, *, workers: int, run_id: int) -> None:
        self.app, self.run_id = app, run_id
        self._workers: list[_Worker | None] = [None] * workers
        self._shared = Arena(0)
        self._generation = 0

    def run(
        self, jobs: Sequence[Job], *, shared: ArrayRecord | None, timeout: float | None = None
    ) -> Iterator[Outcome]:
        """Outcomes in the order of the jobs, as soon as each is known.

        Args:
            jobs: what to do.
            shared: an ArrayRecord that many of the messages hold; it is sent once.
            timeout: seconds after which unfinished jobs fail and their workers are stopped.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        broadcast = self._broadcast(shared)
        done: dict[int, Outcome] = {}
        waiting = deque(range(len(jobs)))
        window = max(4 * len(self._workers), BUFFERED_BYTES // max(1, self._shared.size))
        for position in range(len(jobs)):
            while position not in done:
                self._dispatch(jobs, waiting, position + window, shared, broadcast)
                self._collect(done, waiting, deadline)
            yield done.pop(position)

    def close(self) -> None:
        """Stop every worker."""
        for worker in self._workers:
            if worker is not None:
                worker.stop()
        self._workers = [None] * len(self._workers)
        self._shared.close()

    def _broadcast(self, shared: ArrayRecord | None) -> tuple[int, Described, list[int]] | None:
        """Write the shared arrays where every worker reads them; larger ones need new workers."""
        if shared is None:
            return None
        parcel = take_apart(RecordDict({"shared": shared}))
        if not self._shared.fits(parcel):
            self.close()
            self._shared = Arena(parcel.size)
        self._generation += 1
        return self._generation, parcel.entries, self._shared.write(parcel.buffers)

    def _dispatch(
        self,
        jobs: Sequence[Job],
        waiting: deque[int],
        limit: int,
        shared: ArrayRecord | None,
        broadcast: tuple[int, Described, list[int]] | None,
    ) -> None:
        for depth in range(SLOTS):
            for index in range(len(self._workers)):
                if not waiting or waiting[0] >= limit:
                    return
                worker = self._worker(index)
                if len(worker.jobs) != depth:
                    continue
                parcel = take_apart(jobs[waiting[0]].message.content, shared)
                if parcel.buffers and worker.jobs:
                    continue  # bytes that go by pipe wait until the worker is listening
                position = waiting.popleft()
                try:
                    worker.give(position, jobs[position], parcel, broadcast)
                except (
                    OSError
                ):  # it is dead: this job waits for another, `_collect` sees to the rest
                    waiting.appendleft(position)
                    if not worker.jobs:
                        worker.stop()
                        self._workers[index] = None

    def _worker(self, index: int) -> _Worker:
        worker = self._workers[index]
        if worker is None:
            others = [w.connection for w in self._workers if w is not None]
            worker = _Worker.start(self.app, self.run_id, self._shared, others)
            self._workers[index] = worker
        return worker

    def _collect(
        self, done: dict[int, Outcome], waiting: deque[int], deadline: float | None
    ) -> None:
        """Wait for one event: a reply, a worker's death, or the deadline."""
        busy = {w.connection: i for i, w in enumerate(self._workers) if w is not None and w.jobs}
        if not busy:
            return  # every worker died idle: the next dispatch starts new ones
        remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready = wait(list(busy), remaining)
        if not ready:
            self._give_up(done, waiting)
        for connection in ready:
            index = busy[connection]  # type: ignore[index]
            worker = self._workers[index]
            if worker is None:
                continue
            try:
                position, outcome = worker.take()
                done[position] = outcome
            except (EOFError, OSError):
                position = worker.jobs.popleft()
                waiting.extendleft(reversed(worker.jobs))  # the job behind it never started
                worker.stop()
                self._workers[index] = None
                code = worker.process.exitcode
                died = f"its worker process died (exit code {code})"
                done[position] = Outcome(error=died, lost=True)

    def _give_up(self, done: dict[int, Outcome], waiting: deque[int]) -> None:
        """The deadline has passed: everything unfinished fails, busy workers are stopped."""
        late = Outcome(error="timed out")
        for index, worker in enumerate(self._workers):
            if worker is not None and worker.jobs:
                done.update(dict.fromkeys(worker.jobs, late))
                worker.stop()
                self._workers[index] = None
        done.update(dict.fromkeys(waiting, late))
        waiting.clear()


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

    @classmethod
    def start(
        cls,
        app: ClientApp,
        run_id: int,
        shared: Arena,
        others: list[Connection],
    ) -> _Worker:
        slots = [Arena(shared.size) for _ in range(SLOTS)]
        live = functools.partial(_work, app, run_id, shared, slots)
        forked = Forked.start(live, others, daemon=True)
        process = forked.process
        # At our exit multiprocessing asks by SIGTERM, which workers ignore, and waits: kill before.
        return cls(process, forked.connection, slots, Finalize(None, process.kill, exitpriority=0))

    def give(
        self,
        position: int,
        job: Job,
        parcel: Parcel,
        broadcast: tuple[int, Described, list[int]] | None,
    ) -> None:
        meta = job.message.metadata
        header = (job.node_id, job.node_config, meta.message_type, meta.group_id, meta.ttl)
        slot = self.given % SLOTS
        self.connection.send((slot, header, parcel, take_apart(job.state), broadcast))
        self.jobs.append(position)
        self.given += 1

    def take(self) -> tuple[int, Outcome]:
        """The outcome of the oldest job."""
        error, entries, lengths, inline, state = self.connection.recv()
        slot = self.slots[self.taken % SLOTS]
        self.taken += 1
        position = self.jobs.popleft()
        if error is not None:
            return position, Outcome(error=error)
        buffers = slot.read(lengths) if inline is None else inline
        return position, Outcome(
            content=put_together(entries, buffers), state=put_together(state.entries, state.buffers)
        )

    def stop(self) -> None:
        self.connection.close()
        self.kill()
        self.process.join()
        for slot in self.slots:
            slot.close()


def _work(
    app: ClientApp, run_id: int, shared_arena: Arena, slots: list[Arena], connection: Connection
) -> None:
    """A worker's whole life: take a job, run the app, answer."""
    # A display may have put its own here, with locks that its thread held when we were forked.
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    generation = 0
    shared: ArrayRecord | None = None
    for slot, header, parcel, state, broadcast in jobs_from(connection):
        if broadcast is not None and broadcast[0] != generation:
            generation, entries, lengths = broadcast
            records = put_together(entries, shared_arena.read(lengths))
            shared = records.array_records["shared"]
        answer(connection, _answer(app, run_id, header, parcel, state, shared, slots[slot]))


def _answer(
    app: ClientApp,
    run_id: int,
    header: tuple[int, dict[str, Any], str, str, float],
    parcel: Parcel,
    state: Parcel,
    shared: ArrayRecord | None,
    slot: Arena,
) -> tuple[str | None, Described, list[int], list[bytes] | None, Parcel]:
    node_id, node_config, message_type, group_id, ttl = header
    nothing = Parcel([], [])
    try:
        flower_compat.set_identity(run_id)
        content = put_together(parcel.entries, parcel.buffers, shared)
        message = Message(content, node_id, message_type, ttl=ttl, group_id=group_id)
        context = flower_compat.make_context(run_id, node_id, node_config)
        context.state = put_together(state.entries, state.buffers)
        said = app(message, context)
        if said.has_error():
            return said.error.reason, [], [], None, nothing
        reply = take_apart(said.content)
        after = take_apart(context.state)
    except Exception as error:  # whatever a client does wrong costs its own contribution only
        return describe_failure(error), [], [], None, nothing
    if slot.fits(reply):
        return None, reply.entries, slot.write(reply.buffers), None, after
    return None, reply.entries, [], reply.buffers, after


Described = list[tuple[str, str, Any]]
_BROADCAST = "broadcast"


@dataclass(frozen=True)
class Parcel:
    """Records taken apart: `entries` describe them, `buffers` hold the bytes of their arrays."""

    entries: Described
    buffers: list[bytes]

    @property
    def size(self) -> int:
        """Bytes of all arrays."""
        return sum(map(len, self.buffers))


def take_apart(records: RecordDict, shared: ArrayRecord | None = None) -> Parcel:
    """Describe records with plain values; `shared` is mentioned, not copied."""
    entries: Described = []
    buffers: list[bytes] = []
    for key, record in records.items():
        if record is shared:
            entries.append((key, _BROADCAST, None))
        elif isinstance(record, ArrayRecord):
            entries.append((key, "arrays", [(n, a.dtype, a.shape) for n, a in record.items()]))
            buffers.extend(array.data for array in record.values())
        else:
            kind = "config" if isinstance(record, ConfigRecord) else "metrics"
            entries.append((key, kind, dict(record)))
    return Parcel(entries, buffers)


def put_together(
    entries: Described, buffers: Sequence[bytes], shared: ArrayRecord | None = None
) -> RecordDict:
    """The records that `take_apart` described.

    >>> parcel = take_apart(RecordDict({"c": ConfigRecord({"round": 3})}))
    >>> put_together(parcel.entries, parcel.buffers)["c"]["round"]
    3
    """
    remaining = iter(buffers)
    records = RecordDict()
    for key, kind, payload in entries:
        if kind == _BROADCAST:
            if shared is None:
                raise ValueError("a message refers to a broadcast model that was not sent")
            records[key] = shared
        elif kind == "arrays":
            records[key] = ArrayRecord(
                {name: make_array(dtype, shape, next(remaining)) for name, dtype, shape in payload}
            )
        else:
            records[key] = (ConfigRecord if kind == "config" else MetricRecord)(payload)
    return records


class Arena:
    """A piece of memory that this process shares with the workers it forks."""

    def __init__(self, size: int) -> None:
        self.size = max(size, mmap.PAGESIZE)
        self._memory = mmap.mmap(-1, self.size)

    def fits(self, parcel: Parcel) -> bool:
        """Whether the parcel's bytes have room here."""
        return parcel.size <= self.size

    def write(self, buffers: Sequence[bytes]) -> list[int]:
        """Lay buffers end to end; returns their lengths."""
        offset = 0
        for data in buffers:
            self._memory[offset : offset + len(data)] = data
            offset += len(data)
        return [len(data) for data in buffers]

    def read(self, lengths: Sequence[int]) -> list[bytes]:
        """Copies of the buffers that were written with these lengths."""
        buffers, offset = [], 0
        for length in lengths:
            buffers.append(self._memory[offset : offset + length])
            offset += length
        return buffers

    def close(self) -> None:
        """Give the memory back."""
        self._memory.close()
