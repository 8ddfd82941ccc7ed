"""Where a run computes: `run_federation` starts the same two apps on the engine of the config."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from dp_fedmed.config import Config, EngineName

if TYPE_CHECKING:
    from dp_fedmed.reporting.display import Display
    from dp_fedmed.server_app import RunResult

logger = logging.getLogger(__name__)


def run_federation(config: Config, display: Display | None = None) -> RunResult:
    """Run a whole federation and return how it ended."""
    from dp_fedmed.reporting.display import LogDisplay

    shown = display or LogDisplay()
    if config.engine.name is EngineName.ray:
        return _run_on_ray(config, shown)
    return _run_locally(config, shown)


def num_workers(config: Config) -> int:
    """Processes that compute: as configured, else one per core, never more than clients."""
    return config.engine.workers or min(len(os.sched_getaffinity(0)), config.federation.num_clients)


def _run_locally(config: Config, display: Display) -> RunResult:
    from dp_fedmed.client_app import ClientRuntime, build_client_app
    from dp_fedmed.federation.local_grid import LocalGrid
    from dp_fedmed.server_app import serve

    runtime = ClientRuntime(config)
    grid = LocalGrid(
        build_client_app(runtime=runtime),
        num_clients=config.federation.num_clients,
        workers=num_workers(config),
    )
    try:
        runtime.preload(config.federation.num_clients)
        return serve(grid, config, display)
    finally:
        grid.close()


def _run_on_ray(config: Config, display: Display) -> RunResult:
    from dp_fedmed.client_app import build_client_app
    from dp_fedmed.federation.flower_compat import run_on_ray
    from dp_fedmed.server_app import build_server_app

    results: list[RunResult] = []
    run_on_ray(
        build_server_app(config, display=display, on_result=results.append),
        build_client_app(config),
        num_clients=config.federation.num_clients,
        num_cpus=num_workers(config),
        address=config.engine.address,
    )
    return results[0]
