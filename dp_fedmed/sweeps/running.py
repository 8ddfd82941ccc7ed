"""Runs the jobs of a sweep side by side, and those only that have yet to come to their end."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Sequence
from importlib import import_module

from dp_fedmed.config import Config
from dp_fedmed.sweeps.directory import SweepDirectory, SweepJob
from dp_fedmed.sweeps.display import SweepDisplay
from dp_fedmed.sweeps.jobs import JobRunner
from dp_fedmed.sweeps.pool import Event, JobPool, Progress, Started
from dp_fedmed.sweeps.results import Row, failed_row


def run_jobs(
    directory: SweepDirectory,
    jobs: Sequence[SweepJob],
    settings: Callable[[SweepJob, str], Config],
    at_a_time: int,
) -> list[Row]:
    """Run what is left of these jobs, and return the rows of all of them.

    Raises:
        KeyboardInterrupt: when it was interrupted; every running job has been given the time to
            end its round, and can be resumed.
    """
    left = directory.left_to_do(jobs)
    display = SweepDisplay(directory.path, jobs, list(directory.rows.values()))
    if left:
        with display.loading():
            preload()
    runner = JobRunner(
        directory, settings, workers_of_last([job.number for job in left], at_a_time)
    )
    pool = JobPool(runner, workers=max(1, min(at_a_time, len(left))))
    try:
        with display:
            try:
                for event in pool.run(left):
                    _take_in(directory, display, event)
            except KeyboardInterrupt:
                display.stopping()
                for event in pool.interrupt():
                    _take_in(directory, display, event)
                raise
    except KeyboardInterrupt:
        display.interrupted()
        raise
    finally:
        pool.close()
        directory.write_results()
    display.summary([directory.rows[number] for number in sorted(directory.rows)])
    return [directory.rows[job.number] for job in jobs if job.number in directory.rows]


def _take_in(directory: SweepDirectory, display: SweepDisplay, event: Event) -> None:
    if isinstance(event, Started):
        display.started(event.job)
    elif isinstance(event, Progress):
        display.progress(event.job, event.message)
    else:
        row = event.returned
        if event.died:
            number, seconds = event.job.number, display.seconds_of(event.job)
            path = directory.run_dir(number)
            row = failed_row(number, path, event.job.overrides, event.died, seconds=seconds)
        if row is not None:
            directory.add(row)
        display.ended(event.job, row)


def workers_of_last(numbers: Sequence[int], at_a_time: int) -> dict[int, int]:
    """For the last jobs, which would leave cores idle: how many processes there is room for.

    >>> workers_of_last(range(15), 2), workers_of_last(range(16), 2), workers_of_last(range(9), 8)
    ({14: 2}, {}, {8: 8})
    """
    last = len(numbers) % max(1, at_a_time)
    room = at_a_time // last if last else 1
    return dict.fromkeys(numbers[-last:], room) if room > 1 else {}


def jobs_at_a_time(*, threads: int, workers: int | None, device: str) -> int:
    """One for each core that a job uses; one alone on an accelerator."""
    if _on_accelerator(device):
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, (cores or 1) // (threads * (workers or 1)))


def _on_accelerator(device: str) -> bool:
    """Whether jobs would share one accelerator; asked so that forked processes can still use it."""
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    import torch

    if device != "auto":
        return device != "cpu"
    return torch.cuda.is_available() or torch.backends.mps.is_available()


#: What every job needs sooner or later.
HEAVY = (
    *("torch", "torch.func", "opacus", "scipy.optimize", "dp_accounting.pld"),
    *("matplotlib.pyplot", "matplotlib.backends.backend_agg"),
    *("sklearn.datasets", "sklearn.metrics", "dp_fedmed.models"),
    *("dp_fedmed.server_app", "dp_fedmed.client_app", "dp_fedmed.learning.networks.dp_sgd"),
)


def preload() -> None:
    """Import in this process what every job needs: processes forked from it have it at once."""
    gc.disable()  # nothing of this is garbage, and looking for some takes a sixth of the time
    for name in HEAVY:
        import_module(name)
    gc.enable()
    import torch

    torch.set_num_threads(1)  # threads that exist before a fork hang after it
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])  # the first one makes torch import more
