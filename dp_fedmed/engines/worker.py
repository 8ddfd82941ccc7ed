"""A worker process: it runs a ClientApp, and answers with the reply or with what it adds up to.

Where a round is a sum, a worker adds each answer to the sum of those before and reports which piece
of memory holds it. There are two pieces: a sum is written beside the one that was last reported, so
that the pool always has a whole one, whenever this process is killed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp

from dp_fedmed.engines.forked import answer, jobs_from
from dp_fedmed.engines.transport import Arena, Described, Parcel, put_together, take_apart
from dp_fedmed.federation import flower_compat
from dp_fedmed.federation.failures import describe_failure
from dp_fedmed.federation.partial_sums import Adder, Asked, Facts, Ints

Broadcast = tuple[int, Described, list[int]]


@dataclass(frozen=True)
class Task:
    """One job, as it is sent to a worker.

    Attributes:
        slot: where arrays of the reply go.
        header: node id, node config, message type, group id and time to live.
        content: of the message.
        state: the client's.
        broadcast: number, description and lengths of the arrays that many messages share.
        asked: what a reply that is added up must be like; None where replies are sent.
        adder: what adds up, packed as a pipe does it, with the first job of a sum.
    """

    slot: int
    header: tuple[int, dict[str, Any], str, str, float]
    content: Parcel
    state: Parcel
    broadcast: Broadcast | None
    asked: Asked | None = None
    adder: bytes | None = None


@dataclass(frozen=True)
class Answer:
    """What a worker says of one job.

    Attributes:
        error: why there is no reply.
        entries, lengths, inline: the reply; its arrays are in the task's slot, or inline.
        state: the client's, afterwards.
        facts: of a reply that was added up.
        held: the slot that holds this worker's sum so far; None before the first.
        broken: what went wrong in adding up, which is no client's fault.
    """

    error: str | None = None
    entries: Described = field(default_factory=list)
    lengths: Sequence[int] = ()
    inline: list[bytes] | None = None
    state: Parcel | None = None
    facts: Facts | None = None
    held: int | None = None
    broken: str | None = None


def work(
    app: ClientApp, run_id: int, shared: Arena, slots: list[Arena], connection: Connection
) -> None:
    """A worker's whole life: take a job, run the app, answer."""
    # A display may have put its own here, with locks that its thread held when we were forked.
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    worker = _Worker(app, run_id, shared, slots)
    for task in jobs_from(connection):
        answer(connection, worker.do(task))


class _Worker:
    def __init__(self, app: ClientApp, run_id: int, shared: Arena, slots: list[Arena]) -> None:
        self.app, self.run_id, self.slots = app, run_id, slots
        self._arena, self._generation = shared, 0
        self._model: ArrayRecord | None = None
        self._sum: _Sum | None = None

    def do(self, task: Task) -> Answer:
        """Run the app on one job."""
        if task.broadcast is not None and task.broadcast[0] != self._generation:
            self._generation, entries, lengths = task.broadcast
            records = put_together(entries, self._arena.read(lengths))
            self._model = records.array_records["shared"]
        if task.adder is not None:
            try:
                self._sum = _Sum(ForkingPickler.loads(task.adder), self.slots)
            except Exception as error:
                return Answer(broken=f"{type(error).__name__}: {error}")
        held = None if self._sum is None or task.asked is None else self._sum.held
        try:
            content, state = self._run(task)
        except Exception as error:  # whatever a client does wrong costs its own contribution only
            return Answer(error=describe_failure(error), held=held)
        if isinstance(content, str):
            return Answer(error=content, held=held)
        if task.asked is not None and self._sum is not None:
            return self._sum.answer(task.asked, content, state)
        reply, slot = take_apart(content), self.slots[task.slot]
        if slot.fits(reply):
            return Answer(entries=reply.entries, lengths=slot.write(reply.buffers), state=state)
        return Answer(entries=reply.entries, inline=reply.buffers, state=state)

    def _run(self, task: Task) -> tuple[RecordDict | str, Parcel]:
        """The client's reply or its error, and its state."""
        node_id, node_config, message_type, group_id, ttl = task.header
        flower_compat.set_identity(self.run_id)
        content = put_together(task.content.entries, task.content.buffers, self._model)
        message = Message(content, node_id, message_type, ttl=ttl, group_id=group_id)
        context = flower_compat.make_context(self.run_id, node_id, node_config)
        context.state = put_together(task.state.entries, task.state.buffers)
        said = self.app(message, context)
        if said.has_error():
            return said.error.reason or "", Parcel([], [])
        return said.content, take_apart(context.state)


class _Sum:
    """The sum of one round's answers in this worker; one of two pieces of memory has it whole."""

    def __init__(self, adder: Adder, slots: list[Arena]) -> None:
        self.adder = adder
        self.held: int | None = None
        self._pieces = [slot.integers(adder.size) for slot in slots]

    def answer(self, asked: Asked, content: RecordDict, state: Parcel) -> Answer:
        """Check, bound and add one client's reply; what is unfit adds nothing."""
        try:
            facts, term = self.adder.term(asked, content)
            if term is not None:
                self._add(term)
        except Exception as error:
            return Answer(broken=f"{type(error).__name__}: {error}")
        return Answer(facts=facts, state=state, held=self.held)

    def _add(self, term: list[Ints]) -> None:
        free = 0 if self.held is None else 1 - self.held
        start = 0
        for part in term:
            own = slice(start, start + part.size)
            if self.held is None:
                self._pieces[free][own] = part.reshape(-1)
            else:
                before = self._pieces[self.held][own]
                np.add(before, part.reshape(-1), out=self._pieces[free][own])
            start += part.size
        self.held = free
