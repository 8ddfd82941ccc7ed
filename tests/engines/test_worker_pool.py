"""Workers for one ClientApp: outcomes in order, replaced when they die, stopped when late."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import psutil
import pytest
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp

from dp_fedmed.engines.worker_pool import Job, WorkerPool
from dp_fedmed.federation.flower_compat import set_identity
from dp_fedmed.federation.partial_sums import RoundSum
from dp_fedmed.federation.replies import ReplyReader
from dp_fedmed.privacy.accounting.events import PrivacyEvent
from dp_fedmed.privacy.mechanisms.client_updates import BELOW, ClientUpdates
from tests.runs import apps

Make = Callable[[ClientApp, int], WorkerPool]


@pytest.fixture
def pool_of() -> Iterator[Make]:
    made: list[WorkerPool] = []

    def make(app: ClientApp, workers: int) -> WorkerPool:
        made.append(WorkerPool(app, workers=workers, run_id=1))
        return made[-1]

    yield make
    for pool in made:
        pool.close()
    assert not [c for c in psutil.Process().children() if c.status() != "zombie"]


def jobs_of(count: int, content: RecordDict) -> list[Job]:
    set_identity(run_id=1)
    return [
        Job(n + 1, {"partition-id": n}, Message(content, n + 1, "train"), RecordDict())
        for n in range(count)
    ]


def model() -> RecordDict:
    return RecordDict({"arrays": apps.model_record()})


def numbers(pool: WorkerPool, count: int, timeout: float | None = None) -> list[float | str]:
    content = model()
    shared = content.array_records["arrays"]
    found: list[float | str] = []
    for outcome in pool.run(jobs_of(count, content), shared=shared, timeout=timeout):
        if outcome.content is None:
            found.append(("lost: " if outcome.lost else "") + str(outcome.error))
        else:
            arrays = apps.model_arrays.from_record(outcome.content.array_records["arrays"])
            found.append(float(arrays["b"][0]))
    return found


@pytest.mark.parametrize("workers", [1, 2])
def test_outcomes_come_in_the_order_of_the_jobs(workers: int, pool_of: Make) -> None:
    pool = pool_of(apps.app_of(apps.slow_first), workers)
    assert numbers(pool, 5) == [0, 1, 2, 3, 4]
    assert numbers(pool, 3) == [0, 1, 2], "and a pool can be used again"


def test_a_death_costs_one_job_and_is_not_the_clients_fault(pool_of: Make) -> None:
    found = numbers(pool_of(apps.app_of(apps.dies), 2), 4)
    assert found[1] == "lost: its worker process died (exit code -9)"
    assert [found[n] for n in (0, 2, 3)] == [0, 2, 3]


def test_a_failure_tells_its_kind_and_nothing_of_the_site(pool_of: Make) -> None:
    found = str(numbers(pool_of(apps.app_of(apps.raises), 1), 2)[1])
    assert "FileNotFoundError" in found
    assert "jane" not in found
    assert not found.startswith("lost")


def test_who_is_late_fails_and_does_not_hold_up_the_others(pool_of: Make) -> None:
    started = time.monotonic()
    found = numbers(pool_of(apps.app_of(apps.sleeps), 2), 3, timeout=1.0)
    assert time.monotonic() - started < 10.0
    assert found[:2] == [0, "timed out"]


SIZE, COUNT = 200_000, 40


def numbered(number: int, model: dict[str, np.ndarray]) -> RecordDict:
    time.sleep(0.005)
    return apps.good({"w": np.full(SIZE, 1 + number, np.float32)})


def test_whoever_is_killed_each_client_that_was_added_is_in_the_sum_once(pool_of: Make) -> None:
    event = PrivacyEvent.full(unit="client", noise_multiplier=1.0)
    mechanism = ClientUpdates(event, max_norm=2.0**20, expected_cohort=1.0)
    names = {n + 1: f"client-{n}" for n in range(COUNT)}
    reader = ReplyReader(names, guard=None, hides_cohorts=True, max_norm=None)
    like = {"w": np.zeros(SIZE, np.float32)}
    content = RecordDict({"arrays": apps.model_arrays.to_record(like)})
    pool, lost, rounds = pool_of(apps.app_of(numbered), 2), 0, 0
    stop, pause = threading.Event(), 0.03

    def kill() -> None:
        while not stop.wait(pause):
            for child in psutil.Process().children()[:1]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        while rounds < 5 or (lost == rounds * COUNT and rounds < 15):
            total = RoundSum(mechanism, like, reader)
            shared = content.array_records["arrays"]
            found = pool.add_up(jobs_of(COUNT, content), total, shared=shared)
            added = [n for n, outcome in enumerate(found) if outcome.facts is not None]
            lost, rounds = lost + COUNT - len(added), rounds + 1
            pause *= 1.0 if added else 2.0  # a slow machine needs longer to answer at all
            steps = total.total["w"] * mechanism.sums.grid.step
            assert set(np.unique(steps)) == {float(sum(1 + n for n in added))}
            assert int(total.total[BELOW][0]) == len(added)
            assert all(o.lost for n, o in enumerate(found) if n not in added)
    finally:
        stop.set()
        killer.join()
    assert 0 < lost < rounds * COUNT, "workers were killed, and some clients were added"
