"""Worker processes of this machine: how many, and a grid on top of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from dp_fedmed.config import Config, EngineName, Topology
from dp_fedmed.engines.local_grid import LocalGrid
from dp_fedmed.errors import ConfigError, NodeError
from dp_fedmed.federation.nodes import Node, wait_for_nodes
from dp_fedmed.federation.stopping import StopRequest, on_ctrl_c

PROBE_SECONDS = 10.0


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


@contextmanager
def on_local_grid(
    app: ClientApp,
    *,
    num_clients: int,
    workers: int,
    threads: int,
    own_process: bool,
    make_grid: Callable[..., LocalGrid] | None = None,
) -> Iterator[tuple[LocalGrid, StopRequest]]:
    """A grid of simulated clients, closed at the end, and what Ctrl-C asks for meanwhile.

    Args:
        app: what a client does.
        num_clients: how many there are.
        workers: processes that compute.
        threads: of torch, in each of them.
        own_process: compute in another process even with one worker, as a time-out needs it.
        make_grid: gives a grid that is watched, if given.
    """
    import torch

    grid = (make_grid or LocalGrid)(
        app, num_clients=num_clients, workers=workers, own_process=own_process
    )
    try:
        if grid.has_workers:
            torch.set_num_threads(1)  # threads that exist before a fork hang after it
            _refuse_threads_that_hang(threads)
        stop = StopRequest()
        with on_ctrl_c(stop):
            yield grid, stop
    finally:
        grid.close()


def _refuse_threads_that_hang(threads: int) -> None:
    """Try torch's threads in a forked process: GNU OpenMP hangs there if this one has used them."""
    if threads == 1:
        return
    import multiprocessing

    probe = multiprocessing.get_context("fork").Process(
        target=_use_threads, args=(threads,), daemon=True
    )
    probe.start()
    probe.join(PROBE_SECONDS)
    if probe.is_alive():
        probe.kill()
        probe.join()
        raise ConfigError(
            f"training.threads={threads} cannot be used by worker processes here, "
            "since this process has used torch's threads before: set engine.workers=1 or "
            "training.threads=1, or start from a new process"
        )


def _use_threads(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)
    torch.ones(512, 512) @ torch.ones(512, 512)
    torch.ones(2_000_000).sum()


def with_connected_clients(
    grid: Grid, config: Config, *, num_clients_given: bool
) -> tuple[Config, dict[str, Node]]:
    """The configuration with as many clients as there are, and the clients by name.

    Raises:
        NodeError: if there are others than the configuration says.
    """
    forks = isinstance(grid, LocalGrid) and grid.has_workers
    # A process that forks must not have started torch's threads: they would hang in its children.
    torch.set_num_threads(1 if forks else config.training.threads)
    federation = config.federation
    fixed = num_clients_given or federation.topology is Topology.centralized
    nodes = wait_for_nodes(
        grid,
        expected=config.num_sites if fixed else None,
        timeout=federation.connect_timeout,
        ask_all=config.asks_for_sizes,
    )
    if len(nodes) == config.num_sites:
        return config, nodes
    if fixed:
        raise NodeError(
            f"{len(nodes)} clients are connected, but federation.num_clients="
            f"{federation.num_clients} with federation.topology={federation.topology} is "
            f"{config.num_sites}: make the two equal"
        )
    return config.replace(federation=replace(federation, num_clients=len(nodes))), nodes
