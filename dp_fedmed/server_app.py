"""The Flower ServerApp: waits for its clients, then runs what the configuration says."""

from __future__ import annotations

import logging
from collections.abc import Callable

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from dp_fedmed.assemble import serve
from dp_fedmed.config import Config, from_run_config
from dp_fedmed.errors import RunFinished
from dp_fedmed.federation.stopping import StopRequest, on_ctrl_c
from dp_fedmed.reporting.display import LogDisplay
from dp_fedmed.reporting.run_log import show_on_stdout
from dp_fedmed.run.observer import Observer
from dp_fedmed.run.results import RunResult

logger = logging.getLogger(__name__)


def build_server_app(
    config: Config | None = None,
    *,
    observer: Observer | None = None,
    on_result: Callable[[RunResult], None] = lambda result: None,
    stop: StopRequest | None = None,
) -> ServerApp:
    """The ServerApp for a configuration; without one, for Flower's run-config."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        shown = observer or LogDisplay()
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
