"""Which training records a simulated client has: the one answer for runs, plans and pictures."""

from __future__ import annotations

import numpy as np

from dp_fedmed.config import Config, Topology
from dp_fedmed.data.partitioning import partition
from dp_fedmed.data.records import DataSet, Indices
from dp_fedmed.data.splits import cap_groups, split_client


def client_indices(
    config: Config, data: DataSet, *, client: int, num_clients: int
) -> tuple[Indices, Indices]:
    """(training, validation) positions in `data.train` of one client of a simulation.

    Where all records are pooled, the one site has those that the clients would train with.

    >>> from dp_fedmed.config import compose
    >>> from dp_fedmed.data import load_data
    >>> config = compose(["data.client_val_fraction=0.1"])
    >>> data = load_data(config.data, seed=0)
    >>> [len(part) for part in client_indices(config, data, client=0, num_clients=5)]
    [67, 7]
    """
    if config.federation.topology is Topology.centralized:
        count = config.federation.num_clients
        shares = [_share(config, data, client=i, num_clients=count) for i in range(count)]
        train, val = (np.sort(np.concatenate(parts)) for parts in zip(*shares, strict=True))
    else:
        train, val = _share(config, data, client=client, num_clients=num_clients)
    return capped(config, data, train, client=client), val


def _share(
    config: Config, data: DataSet, *, client: int, num_clients: int
) -> tuple[Indices, Indices]:
    parts = partition(data, config.data.partition, num_clients=num_clients, seed=config.seed)
    return split_client(
        parts[client],
        val_fraction=config.data.client_val_fraction,
        seed=config.seed,
        client=client,
    )


def capped(config: Config, data: DataSet, indices: Indices, *, client: int) -> Indices:
    """These training records, at most `data.max_records_per_group` of each patient."""
    if config.data.group_by is None:
        return indices
    limit = config.data.max_records_per_group
    return cap_groups(data.train, indices, limit=limit, seed=config.seed, client=client)
