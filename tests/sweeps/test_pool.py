"""The pool of processes: every job ends, whatever happens to the process that has it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dp_fedmed.sweeps.pool import Ended, JobPool, Progress


def _work(job: tuple[str, Any], tell: Callable[[Any], None]) -> Any:
    kind, value = job
    if kind == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "exit":
        os._exit(3)
    if kind == "sleep":
        tell(os.getpid())
        time.sleep(value)
    return value, os.getpid()


def _ends(pool: JobPool, jobs: list[Any]) -> dict[Any, Ended]:
    return {event.job: event for event in pool.run(jobs) if isinstance(event, Ended)}


def test_a_process_that_dies_costs_its_own_job_only() -> None:
    pool = JobPool(_work, workers=2)
    try:
        jobs = [("echo", 1), ("die", 2), ("exit", 3), ("echo", 4), ("echo", 5)]
        ends = _ends(pool, jobs)
    finally:
        pool.close()
    assert {job: end.returned[0] for job, end in ends.items() if not end.died} == {
        ("echo", 1): 1,
        ("echo", 4): 4,
        ("echo", 5): 5,
    }
    assert ends["die", 2].died == "its process died (killed by SIGKILL)"
    assert ends["exit", 3].died == "its process died (exit code 3)"


def test_processes_stay_for_the_next_job_and_end_with_the_pool() -> None:
    pool = JobPool(_work, workers=2)
    try:
        ends = _ends(pool, [("echo", number) for number in range(6)])
    finally:
        pool.close()
    pids = {end.returned[1] for end in ends.values()}
    assert 1 <= len(pids) <= 2
    assert os.getpid() not in pids
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_an_interrupted_pool_lets_its_jobs_stop_by_themselves() -> None:
    pool = JobPool(_work, workers=2)
    events = pool.run([("sleep", 60), ("sleep", 61), ("echo", 1)])
    told = 0
    try:
        while told < 2:
            told += isinstance(next(events), Progress)
        started = time.monotonic()
        ends = [event for event in pool.interrupt() if isinstance(event, Ended)]
    finally:
        pool.close()
    assert {end.job for end in ends} == {("sleep", 60), ("sleep", 61)}
    assert all(end.returned is None and not end.died for end in ends)
    assert time.monotonic() - started < 30


def test_workers_end_when_the_pool_is_killed() -> None:
    """A sweep that is killed must not go on in the background."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        pool = JobPool(_work, workers=1)
        for event in pool.run([("sleep", 60)]):
            if isinstance(event, Progress):
                os.write(write, str(event.message).encode())
                threading.Event().wait()
    worker = int(os.read(read, 32))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and _is_running(worker):
        time.sleep(0.05)
    assert not _is_running(worker)


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
