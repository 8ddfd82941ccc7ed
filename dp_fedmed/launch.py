"""A whole federation from Python: both apps on the configured engine."""

from __future__ import annotations

from collections.abc import Callable

from dp_fedmed.assemble import Assembly, client_runtime, serve
from dp_fedmed.client_app import build_client_app
from dp_fedmed.config import Config, EngineName
from dp_fedmed.engines.local_grid import LocalGrid
from dp_fedmed.engines.running import num_workers, on_local_grid
from dp_fedmed.federation import flower_compat
from dp_fedmed.federation.stopping import StopRequest
from dp_fedmed.reporting.display import LogDisplay
from dp_fedmed.run.observer import Observer
from dp_fedmed.run.results import RunResult
from dp_fedmed.server_app import build_server_app


def run_federation(config: Config, observer: Observer | None = None) -> RunResult:
    """Run a whole federation on the configured engine, and return how it ended."""
    shown = observer or LogDisplay()
    return (run_on_ray if config.engine.name is EngineName.ray else run_locally)(config, shown)


def run_locally(
    config: Config,
    observer: Observer,
    make_grid: Callable[..., LocalGrid] | None = None,
    parts: Assembly | None = None,
) -> RunResult:
    """Run on this machine; `make_grid` gives a grid that is watched, `parts` parts of one's own."""
    runtime = client_runtime(config)
    with on_local_grid(
        build_client_app(runtime=runtime),
        num_clients=config.num_sites,
        workers=num_workers(config),
        threads=config.training.threads,
        own_process=config.federation.round_timeout is not None,
        make_grid=make_grid,
    ) as (grid, stop):
        runtime.preload(config.federation.num_clients)
        return serve(grid, config, observer, stop=stop, parts=parts)


def run_on_ray(config: Config, observer: Observer) -> RunResult:
    """Run on Flower's simulation runtime."""
    results: list[RunResult] = []
    stop = StopRequest()
    flower_compat.run_on_ray(
        build_server_app(config, observer=observer, on_result=results.append, stop=stop),
        build_client_app(config),
        num_clients=config.num_sites,
        num_cpus=num_workers(config),
        address=config.engine.address,
        stop=stop,
    )
    return results[0]
