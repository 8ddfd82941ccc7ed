"""What a worker of a sweep does with one job: make its settings, run or resume it, read its row."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dp_fedmed.config import Config, EngineName
from dp_fedmed.config.resume import stored_settings
from dp_fedmed.errors import sentence_of
from dp_fedmed.reporting.display import RunPictures
from dp_fedmed.sweeps.directory import SweepDirectory, SweepJob, clear_unbegun, has_begun
from dp_fedmed.sweeps.results import Row, failed_row, final_line, result_row

if TYPE_CHECKING:
    from dp_fedmed.federation.rounds import RoundRecord
    from dp_fedmed.run.results import RunResult

Tell = Callable[[Mapping[str, Any]], None]


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
        from dp_fedmed.errors import RunFinished

        started = time.perf_counter()
        path = self.directory.run_dir(job.number)
        log = self.directory.log_file(job.number)
        _print_into(log)
        config: Config | None = None
        message = ""
        try:
            config = self._config(job)
            message = _run(config, tell).stopped
        except RunFinished as finished:
            message = f"{finished}, but its metrics.jsonl lacks the final line: restore it"
        except Exception as error:
            message = describe_error(error)
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
    """A job's clients compute in so many processes, unless the settings say in how many."""
    engine = config.engine
    needs_processes = config.federation.round_timeout is not None
    if engine.name is not EngineName.local or engine.workers is not None or needs_processes:
        return config
    if config.training.threads > 1:  # an earlier job has used threads, and forking would hang
        workers = 1
    return config.replace(engine=replace(engine, workers=workers))


def describe_error(error: Exception) -> str:
    """A refusal's own sentence; for anything else also what kind of error it is."""
    return sentence_of(error) or f"{type(error).__name__}: {error}"


def _run(config: Config, tell: Tell) -> RunResult:
    from dp_fedmed.launch import run_federation
    from dp_fedmed.reporting.run_log import quiet_console

    quiet_console()
    return run_federation(config, JobDisplay(config, tell))


class JobDisplay(RunPictures):
    """Reports to the sweep how far a job is."""

    def __init__(self, config: Config, tell: Tell) -> None:
        self.tell, self.metric = tell, config.task.metric
        tell({"rounds": config.federation.num_rounds, "metric": self.metric})

    def round(self, record: RoundRecord) -> None:
        """How far it is, and how good."""
        value = record.server_metrics.get(self.metric)
        self.tell({"round": record.server_round, "value": value, "epsilon": record.epsilons})
