"""The Flower ServerApp: waits for its clients, then runs what the configuration says."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from dp_fedmed.config import Config, Topology, from_run_config
from dp_fedmed.engines.local_grid import LocalGrid
from dp_fedmed.errors import ConfigError, NodeError, RunFinished
from dp_fedmed.federation.nodes import wait_for_nodes
from dp_fedmed.federation.stopping import StopRequest, on_ctrl_c
from dp_fedmed.reporting.display import Display, LogDisplay
from dp_fedmed.reporting.run_log import log_to, show_on_stdout
from dp_fedmed.run.server_run import RunResult, ServerRun

logger = logging.getLogger(__name__)


def serve(
    grid: Grid,
    config: Config,
    display: Display,
    *,
    num_clients_given: bool = True,
    stop: StopRequest | None = None,
) -> RunResult:
    """Run a configuration on a grid, whichever engine is behind it."""
    forks = isinstance(grid, LocalGrid) and grid.has_workers
    # A process that forks must not have started torch's threads: they would hang in its children.
    torch.set_num_threads(1 if forks else config.training.threads)
    pooled = config.federation.topology is Topology.centralized
    expected = config.num_sites if num_clients_given or pooled else None
    nodes = wait_for_nodes(
        grid,
        expected=expected,
        timeout=config.federation.connect_timeout,
        ask_all=config.asks_for_sizes,
    )
    if len(nodes) != config.num_sites:
        if num_clients_given or pooled:
            raise NodeError(
                f"{len(nodes)} clients are connected, but federation.num_clients="
                f"{config.federation.num_clients} with federation.topology="
                f"{config.federation.topology} is {config.num_sites}: make the two equal"
            )
        config = config.replace(federation=replace(config.federation, num_clients=len(nodes)))
    run = ServerRun(config, display, stop)
    try:
        log = run.directory.log_file(secret=config.privacy.style.protects_clients)
        with log_to(log, run.directory.path):
            return run.run(grid, nodes)
    except ConfigError:
        run.store.withdraw()
        raise
    finally:
        run.store.release()


def build_server_app(
    config: Config | None = None,
    *,
    display: Display | None = None,
    on_result: Callable[[RunResult], None] = lambda result: None,
    stop: StopRequest | None = None,
) -> ServerApp:
    """The ServerApp for a configuration; without one, for Flower's run-config."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        shown = display or LogDisplay()
        if config is not None:
            on_result(serve(grid, config, shown, stop=stop))
            return
        show_on_stdout()
        given = from_run_config(context.run_config, run_id=context.run_id)
        explicit = "federation.num_clients" in str(context.run_config.get("overrides", ""))
        logger.info("This run's directory, on this machine: %s", given.run_dir)
        asked = StopRequest()
        try:
            with on_ctrl_c(asked):  # in a process of its own; Flower's simulation has a thread
                on_result(serve(grid, given, shown, num_clients_given=explicit, stop=asked))
        except RunFinished as finished:
            logger.info("%s", finished)

    return app


app = build_server_app()
