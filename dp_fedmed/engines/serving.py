"""A server's first step on any engine: threads that suit it, and its clients connected."""

from __future__ import annotations

from dataclasses import replace

import torch
from flwr.serverapp import Grid

from dp_fedmed.config import Config, Topology
from dp_fedmed.engines.local_grid import LocalGrid
from dp_fedmed.errors import NodeError
from dp_fedmed.federation.nodes import Node, wait_for_nodes


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
