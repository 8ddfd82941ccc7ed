"""Worker processes under both pools."""

from __future__ import annotations

import os
import signal
import time
from multiprocessing.connection import Connection

import pytest

from dp_fedmed.engines.forked import Forked, answer, jobs_from


def _double(connection: Connection) -> None:
    for job in jobs_from(connection):
        answer(connection, 2 * job)


def _ended(worker: Forked, seconds: float = 20.0) -> bool:
    worker.process.join(seconds)
    return not worker.process.is_alive()


def test_jobs_are_answered_in_turn_until_the_pool_closes_its_end() -> None:
    worker = Forked.start(_double, [])
    for job in (1, "ab"):
        worker.connection.send(job)
        assert worker.connection.recv() == 2 * job
    worker.connection.close()
    assert _ended(worker)
    assert worker.how_it_died() == "exit code 0"


def test_a_worker_does_not_keep_its_siblings_pipes_open() -> None:
    first = Forked.start(_double, [])
    second = Forked.start(_double, [first.connection])
    first.connection.close()
    assert _ended(first), "the second one still holds the first one's pipe"
    second.connection.close()
    assert _ended(second)


@pytest.mark.parametrize("own_group", [False, True])
def test_ctrl_c_and_sigterm_leave_a_worker_to_its_pool(own_group: bool) -> None:
    worker = Forked.start(_double, [], own_group=own_group)
    worker.connection.send(1)
    assert worker.connection.recv() == 2  # its handlers are set
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(worker.process.pid or 0, number)
    time.sleep(0.05)
    worker.connection.send(3)
    assert worker.connection.recv() == 6
    worker.process.kill()
    assert _ended(worker)
    assert worker.how_it_died() == "killed by SIGKILL"
