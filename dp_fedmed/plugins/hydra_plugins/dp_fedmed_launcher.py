"""Hydra launcher that runs the jobs of a sweep side by side, on processes that are reused.

The sweeper is Hydra's own, except that it loads PyTorch while jobs are checked. Hydra accepts only
classes in a package of this name, which `dp_fedmed.sweeps.launcher` puts on Python's path.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stderr, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from rich.console import Console

from dp_fedmed.config import Config, EngineName, given_by_user, refuse_without_effect
from dp_fedmed.config.hydra_compat import BasicSweeper, BasicSweeperConf
from dp_fedmed.errors import EXIT_STOPPED, ConfigError
from dp_fedmed.sweeps.launcher import current

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from dp_fedmed.sweeps.directory import SweepDirectory, SweepJob


@dataclass
class PoolLauncherConf:
    """Its settings.

    Attributes:
        n_jobs: jobs at a time; null for as many as there are cores.
    """

    _target_: str = "hydra_plugins.dp_fedmed_launcher.PoolLauncher"
    n_jobs: int | None = None


@dataclass
class PoolSweeperConf(BasicSweeperConf):
    """Settings as of Hydra's own sweeper."""

    _target_: str = "hydra_plugins.dp_fedmed_launcher.PoolSweeper"


class PoolSweeper(BasicSweeper):
    """Hydra's sweeper, which composes every job before the first begins, to find mistakes.

    Here that happens on another core while PyTorch is loaded, which takes longer.
    """

    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None:
        """Raises the error of a job that cannot be composed."""
        assert self.config is not None
        begun = (Path(str(self.config.hydra.sweep.dir)) / "sweep.yaml").exists()
        if begun or not hasattr(os, "fork") or len(batch) < 2:
            return super().validate_batch_is_legal(batch)
        checking = os.fork()
        if checking == 0:
            try:
                with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):
                    super().validate_batch_is_legal(batch)
            except BaseException:
                os._exit(1)
            os._exit(0)
        try:
            from dp_fedmed.sweeps.running import preload

            with Console().status("loading PyTorch and Flower"):
                preload()
        finally:
            _, status = os.waitpid(checking, 0)
        if status != 0:  # once more, for the error itself
            super().validate_batch_is_legal(batch)
        return None


class PoolLauncher(Launcher):
    """Runs the jobs of a sweep side by side."""

    def __init__(self, n_jobs: int | None = None) -> None:
        super().__init__()
        self.n_jobs = n_jobs
        self._directory: SweepDirectory | None = None

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Keeps what Hydra passes before the first batch."""
        self.hydra_context, self.config = hydra_context, config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Run a batch of jobs; each one's value for a sweeper is its validation metric."""
        from dp_fedmed.sweeps.directory import SweepDirectory, is_sweep, make_jobs, swept_keys
        from dp_fedmed.sweeps.running import run_jobs

        hydra = self.config.hydra
        params = hydra.sweeper.get("params") or {}
        words = [*(f"{key}={value}" for key, value in params.items()), *hydra.overrides.task]
        jobs = make_jobs(job_overrides, initial_job_idx, swept_keys(words))
        if self._directory is None:
            path = Path(str(hydra.sweep.dir)).absolute()
            if not is_sweep(path):
                self._refuse_without_effect(jobs, path)
            self._directory = SweepDirectory(path, current().command, jobs)
            current().end = self._directory.lock.release
        else:
            self._directory.extend(jobs)
        with self._engine():
            rows = run_jobs(self._directory, jobs, self._settings_of, self._at_a_time())
        values = {row["job"]: row["val"].get(row["metric"]) for row in rows}
        wrong = len(rows) < len(jobs) or any(row["status"] != "completed" for row in rows)
        current().exit_code = max(current().exit_code, EXIT_STOPPED if wrong else 0)
        returned = [JobReturn(overrides=job.words, status=JobStatus.COMPLETED) for job in jobs]
        for job, result in zip(jobs, returned, strict=True):
            result.return_value = values.get(job.number)
        return returned

    def _refuse_without_effect(self, jobs: Sequence[SweepJob], path: Path) -> None:
        """Refuses settings that have no effect in any job."""

        def settings() -> Iterator[Config]:
            for job in jobs:
                with suppress(ConfigError):  # the job itself will say what is wrong
                    yield self._settings_of(job, str(path))

        runs = settings()
        for first in runs:
            refuse_without_effect(chain([first], runs), given_by_user(jobs[0].words))

    def _settings_of(self, job: SweepJob, run_dir: str) -> Config:
        """A job's configuration, as Hydra's own launcher would compose it."""
        from hydra.core.hydra_config import HydraConfig
        from omegaconf import open_dict

        words = list(job.words)
        tree = self.hydra_context.config_loader.load_sweep_config(self.config, words)
        with open_dict(tree):
            tree.hydra.job.id, tree.hydra.job.num = str(job.number), job.number
            tree.hydra.runtime.output_dir = run_dir
        HydraConfig.instance().set_config(tree)
        with open_dict(tree):
            del tree["hydra"]
        return current().settings(tree, words, run_dir)

    def _engine(self) -> AbstractContextManager[None]:
        """What all jobs share besides this process: one Ray, if they are to start one."""
        engine = self.config.engine
        if engine.name is not EngineName.ray or engine.address or os.environ.get("RAY_ADDRESS"):
            return nullcontext()
        from dp_fedmed.sweeps.ray_cluster import ray_cluster

        return ray_cluster(engine.workers or os.cpu_count() or 1)

    def _at_a_time(self) -> int:
        """Jobs at a time: one for each core that a job uses, one alone on an accelerator."""
        if self.n_jobs is not None:
            if self.n_jobs < 1:
                raise ConfigError(
                    f"hydra.launcher.n_jobs={self.n_jobs} is out of range: give 1 or more"
                )
            return self.n_jobs
        from dp_fedmed.sweeps.running import jobs_at_a_time

        engine, training = self.config.engine, self.config.training
        if engine.name is EngineName.ray:
            return 1
        return jobs_at_a_time(
            threads=training.threads, workers=engine.workers, device=training.device
        )
