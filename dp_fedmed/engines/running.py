"""Where a run computes: `run_federation` starts the same two apps on the engine of the config."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from dp_fedmed.config import Config, EngineName
from dp_fedmed.errors import ConfigError
from dp_fedmed.federation.stopping import StopRequest, on_ctrl_c

if TYPE_CHECKING:
    from dp_fedmed.engines.local_grid import LocalGrid
    from dp_fedmed.reporting.display import Display
    from dp_fedmed.run.server_run import RunResult

logger = logging.getLogger(__name__)

PROBE_SECONDS = 10.0


def run_federation(config: Config, display: Display | None = None) -> RunResult:
    """Run a whole federation and return how it ended."""
    from dp_fedmed.reporting.display import LogDisplay

    shown = display or LogDisplay()
    if config.engine.name is EngineName.ray:
        return _run_on_ray(config, shown)
    return run_locally(config, shown)


def num_workers(config: Config) -> int:
    """Processes that compute: as configured, else one per core, never more than clients.

    Raises:
        ConfigError: for several workers on an accelerator, which forked processes cannot use.
    """
    from dp_fedmed.learning.networks.local_training import pick_device

    accelerator = config.engine.name is EngineName.local and pick_device(
        config.training.device
    ).type not in ("cpu",)
    if config.engine.workers is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        fitting = max(1, (cores or 1) // config.training.threads)
        return 1 if accelerator else min(fitting, config.num_sites)
    if accelerator and config.engine.workers > 1:
        raise ConfigError(
            f"engine.workers={config.engine.workers} computes in forked processes, which cannot "
            f"use training.device={config.training.device}: use engine.workers=1, engine=ray or "
            "training.device=cpu"
        )
    return config.engine.workers


def run_locally(
    config: Config, display: Display, make_grid: Callable[..., LocalGrid] | None = None
) -> RunResult:
    """Run on this machine; `make_grid` may give a grid that is watched."""
    import torch

    from dp_fedmed.client_app import ClientRuntime, build_client_app
    from dp_fedmed.engines.local_grid import LocalGrid
    from dp_fedmed.server_app import serve

    runtime = ClientRuntime(config)
    grid = (make_grid or LocalGrid)(
        build_client_app(runtime=runtime),
        num_clients=config.num_sites,
        workers=num_workers(config),
        own_process=config.federation.round_timeout is not None,
    )
    try:
        if grid.has_workers:
            torch.set_num_threads(1)  # threads that exist before a fork hang after it
            _refuse_threads_that_hang(config)
        runtime.preload(config.federation.num_clients)
        stop = StopRequest()
        with on_ctrl_c(stop):
            return serve(grid, config, display, stop=stop)
    finally:
        grid.close()


def _refuse_threads_that_hang(config: Config) -> None:
    """Try torch's threads in a forked process: GNU OpenMP hangs there if this one has used them."""
    if config.training.threads == 1:
        return
    import multiprocessing

    probe = multiprocessing.get_context("fork").Process(
        target=_use_threads, args=(config.training.threads,), daemon=True
    )
    probe.start()
    probe.join(PROBE_SECONDS)
    if probe.is_alive():
        probe.kill()
        probe.join()
        raise ConfigError(
            f"training.threads={config.training.threads} cannot be used by worker processes here, "
            "since this process has used torch's threads before: set engine.workers=1 or "
            "training.threads=1, or start from a new process"
        )


def _use_threads(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)
    torch.ones(512, 512) @ torch.ones(512, 512)
    torch.ones(2_000_000).sum()


def _run_on_ray(config: Config, display: Display) -> RunResult:
    from dp_fedmed.client_app import build_client_app
    from dp_fedmed.federation.flower_compat import run_on_ray
    from dp_fedmed.server_app import build_server_app

    results: list[RunResult] = []
    stop = StopRequest()
    run_on_ray(
        build_server_app(config, display=display, on_result=results.append, stop=stop),
        build_client_app(config),
        num_clients=config.num_sites,
        num_cpus=num_workers(config),
        address=config.engine.address,
        stop=stop,
    )
    return results[0]
