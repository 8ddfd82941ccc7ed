"""A worker that adds up: a whole sum at every moment, in one of two pieces of memory."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from dp_fedmed.engines.transport import Arena, Parcel, take_apart
from dp_fedmed.engines.worker import Answer, Task, _Worker
from dp_fedmed.federation.flower_compat import set_identity
from dp_fedmed.federation.partial_sums import Adder, Asked
from dp_fedmed.federation.privacy_guard import Expected
from dp_fedmed.privacy.accounting.events import PrivacyEvent
from dp_fedmed.privacy.mechanisms.client_updates import ClientUpdates
from tests.runs import apps

MECHANISM = ClientUpdates(
    PrivacyEvent.full(unit="client", noise_multiplier=1.0), max_norm=100.0, expected_cohort=1.0
)
EMPTY = MECHANISM.empty(apps.MODEL)
ADDER = Adder(MECHANISM, apps.MODEL, EMPTY)


def worker_of(answer: apps.Answer) -> _Worker:
    set_identity(run_id=1)
    return _Worker(apps.app_of(answer), 1, Arena(4096), [Arena(4096), Arena(4096)])


def task(number: int, *, adder: Adder | None = None, adds_up: bool = True) -> Task:
    content = take_apart(RecordDict({"arrays": apps.model_record(), "config": ConfigRecord()}))
    set_identity(run_id=1)
    ttl = Message(RecordDict(), 1, "train").metadata.ttl
    header = (number + 1, {"partition-id": number}, "train", "1", ttl)
    return Task(
        slot=0,
        header=header,
        content=content,
        state=Parcel([], []),
        broadcast=None,
        asked=Asked(f"client-{number}", Expected()) if adds_up else None,
        adder=None if adder is None else pickle.dumps(adder),
    )


def held(worker: _Worker, said: Answer) -> float:
    """The first weight of the sum that a worker says it has, in units of an answer."""
    assert said.held is not None
    steps = int(worker.slots[said.held].integers(ADDER.size)[0])
    return round(steps * MECHANISM.sums.grid.step, 6)


def test_a_sum_is_written_beside_the_one_that_was_reported() -> None:
    worker = worker_of(apps.add_partition_number)
    said = [worker.do(task(1, adder=ADDER)), worker.do(task(2))]
    assert [each.held for each in said] == [0, 1]
    assert [held(worker, each) for each in said] == [1.0, 3.0], "the first is still there"
    assert held(worker, worker.do(task(4))) == 7.0


def test_a_new_round_begins_with_nothing() -> None:
    worker = worker_of(apps.add_partition_number)
    worker.do(task(5, adder=ADDER))
    assert held(worker, worker.do(task(2, adder=ADDER))) == 2.0


def test_who_fails_leaves_the_sum_as_it_is() -> None:
    worker = worker_of(apps.raises)
    first = worker.do(task(1, adder=ADDER))
    assert (first.held, first.facts) == (None, None)
    assert "FileNotFoundError" in str(first.error)
    two = worker.do(task(2))
    again = worker.do(task(1))
    assert (again.held, held(worker, again)) == (two.held, 2.0)


def test_other_messages_are_answered_whole() -> None:
    worker = worker_of(apps.add_partition_number)
    worker.do(task(1, adder=ADDER))
    said = worker.do(task(3, adds_up=False))
    assert said.facts is None
    assert [entry[0] for entry in said.entries] == ["arrays", "metrics"]


@pytest.mark.parametrize("sent", [b"no pickle", pickle.dumps(3)])
def test_what_cannot_be_read_is_said_and_is_no_clients_fault(sent: bytes) -> None:
    broken = Task(**{**vars(task(1)), "adder": sent})
    said = worker_of(apps.add_partition_number).do(broken)
    assert said.broken is not None
    assert said.error is None


def test_memory_is_seen_as_integers() -> None:
    arena = Arena(64)
    arena.integers(3)[:] = [1, 2, 3]
    assert np.array_equal(arena.integers(2), [1, 2])
    arena.close()
