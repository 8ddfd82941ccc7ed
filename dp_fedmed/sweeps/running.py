"""Runs the jobs of a sweep that have not ended yet, side by side."""

from __future__ import annotations

import gc
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dp_fedmed.config import Config, EngineName
from dp_fedmed.config.resume import stored_settings
from dp_fedmed.errors import RunFinished, sentence_of
from dp_fedmed.reporting.run_pictures import RunPictures
from dp_fedmed.sweeps.directory import SweepDirectory, SweepJob, clear_unbegun, has_begun
from dp_fedmed.sweeps.display import SweepDisplay
from dp_fedmed.sweeps.pool import Event, JobPool, Progress, Started
from dp_fedmed.sweeps.results import Row, failed_row, final_line, result_row

if TYPE_CHECKING:
    from dp_fedmed.federation.rounds import RoundRecord

Tell = Callable[[Mapping[str, Any]], None]


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


class JobRunner:
    """Runs the jobs of one sweep.

    Args:
        directory: the sweep's.
        settings: makes a new job's configuration of its overrides and its run directory.
        workers: for how many processes a job, by its number, has room; one unless it is said.
    """

    def __init__(
        self,
        directory: SweepDirectory,
        settings: Callable[[SweepJob, str], Config],
        workers: Mapping[int, int],
    ) -> None:
        self.directory, self.settings, self.workers = directory, settings, workers

    def __call__(self, job: SweepJob, tell: Tell) -> Row | None:
        """The job's row; None if it was interrupted."""
        from dp_fedmed.launch import run_federation
        from dp_fedmed.reporting.run_log import quiet_console

        started = time.perf_counter()
        path = self.directory.run_dir(job.number)
        log = self.directory.log_file(job.number)
        _print_into(log)
        config: Config | None = None
        message = ""
        try:
            config = self._config(job)
            quiet_console()
            message = run_federation(config, JobDisplay(config, tell)).stopped
        except RunFinished as finished:
            message = f"{finished}, but its metrics.jsonl lacks the final line: restore it"
        except Exception as error:
            message = sentence_of(error) or f"{type(error).__name__}: {error}"
            if message.startswith(type(error).__name__):
                traceback.print_exc()
                message += f" ({log.name} has more)"
        if message.startswith("interrupted"):
            return None
        seconds = time.perf_counter() - started
        if final_line(path) is None:  # it did not come to its end, whatever the reason
            return failed_row(
                job.number, path, job.overrides, message, seconds=seconds, config=config
            )
        log.unlink()
        return result_row(job.number, path, job.overrides, seconds=seconds)

    def _config(self, job: SweepJob) -> Config:
        """New settings, or those of the run that was cut off."""
        path = self.directory.run_dir(job.number)
        clear_unbegun(path)
        if has_begun(path):
            config = stored_settings(path).replace(run_dir=str(path), resume="last")
        else:
            config = self.settings(job, str(path))
        return with_workers(config, self.workers.get(job.number, 1))


def _print_into(log: Path) -> None:
    """Send what this process prints to a file, for its owner only: it may name clients."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    with os.fdopen(os.open(log, flags, 0o600), "ab") as file:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(file.fileno(), stream.fileno())


def with_workers(config: Config, workers: int) -> Config:
    """Settings under which a job's clients use this many processes, unless they say how many."""
    engine = config.engine
    needs_processes = config.federation.round_timeout is not None
    if engine.name is not EngineName.local or engine.workers is not None or needs_processes:
        return config
    if config.training.threads > 1:  # an earlier job has used threads, and forking would hang
        workers = 1
    return config.replace(engine=replace(engine, workers=workers))


class JobDisplay(RunPictures):
    """Reports to the sweep how far a job is."""

    def __init__(self, config: Config, tell: Tell) -> None:
        self.tell, self.metric = tell, config.task.metric
        tell({"rounds": config.federation.num_rounds, "metric": self.metric})

    def round(self, record: RoundRecord) -> None:
        """How far it is, and how good."""
        value = record.server_metrics.get(self.metric)
        self.tell({"round": record.server_round, "value": value, "epsilon": record.epsilons})
