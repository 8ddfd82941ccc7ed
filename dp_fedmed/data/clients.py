"""Which records a client trains on: the one answer for runs, plans, tables and pictures.

Where patients are the unit (`data.group_by=patient`), no client has more than
`data.max_records_per_group` records of one, no patient of a simulation is at two clients, and what
is chosen of a patient depends on that patient alone.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache, reduce

import numpy as np

from dp_fedmed.config import Config, PartitionConfig, TaskKind, Topology
from dp_fedmed.data.partitioning import partition
from dp_fedmed.data.records import Array, DataSet, Indices, Records, joined
from dp_fedmed.data.splits import cap_patients, split_client
from dp_fedmed.errors import ConfigError


def training_parts(config: Config, data: DataSet) -> tuple[Indices, ...]:
    """What each site of a simulation trains on: positions in `data.train`.

    >>> from dp_fedmed.config import compose
    >>> from dp_fedmed.data import load_data
    >>> pooled = compose(["privacy=none", "federation=centralized"])
    >>> [len(part) for part in training_parts(pooled, load_data(pooled.data, seed=0))]
    [335]
    """
    count = config.num_sites
    return tuple(
        client_indices(config, data, client=number, num_clients=count)[0] for number in range(count)
    )


def client_indices(
    config: Config, data: DataSet, *, client: int, num_clients: int
) -> tuple[Indices, Indices]:
    """(training, validation) positions in `data.train` of one client of a simulation.

    Where all records are pooled, the one site has those that the clients would train with.

    Raises:
        ConfigError: if a patient has records at two clients, and a guarantee for patients is asked.

    >>> from dp_fedmed.config import compose
    >>> from dp_fedmed.data import load_data
    >>> config = compose(["privacy=none", "data.client_val_fraction=0.1"])
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
        if config.data.group_by is not None:
            _refuse_spread_patients(data, config.data.partition, num_clients, config.seed)
    return _capped(config, data.train, train), val


def deployed_records(config: Config, data: DataSet) -> tuple[Records, Records]:
    """(training, validation) records of a deployed site, of all that it holds.

    The server has a test set of its own, so the parts are one here; an anomaly task leaves the test
    part out, which may have defects. `data.val_fraction` is kept for validation: each patient, or
    each record where patients are unknown, goes to one side by a hash of itself alone. That a
    patient is at no other site is this site's promise.
    """
    whole, ids = _whole_site(data, with_test=config.task.kind is not TaskKind.anomaly)
    train, val = split_client(
        np.arange(len(whole), dtype=np.int64),
        val_fraction=config.data.val_fraction,
        seed=config.seed,
        client=0,
        ids=ids,
        key="data.val_fraction",
    )
    return whole.subset(_capped(config, whole, train)), whole.subset(val)


@lru_cache(maxsize=4)
def _whole_site(data: DataSet, *, with_test: bool) -> tuple[Records, Array]:
    """All records of a site, and the id that decides which side each is on."""
    parts = (data.train, data.val, data.test) if with_test else (data.train, data.val)
    whole = reduce(joined, parts)
    if whole.patient is not None:
        return whole, whole.patient
    pairs = zip(whole.x, whole.y, strict=True)
    digests = [hashlib.sha256(x.tobytes() + y.tobytes()).hexdigest() for x, y in pairs]
    return whole, np.array(digests)


def _share(
    config: Config, data: DataSet, *, client: int, num_clients: int
) -> tuple[Indices, Indices]:
    parts = partition(data, config.data.partition, num_clients=num_clients, seed=config.seed)
    patient = data.train.patient
    return split_client(
        parts[client],
        val_fraction=config.data.client_val_fraction,
        seed=config.seed,
        client=client,
        ids=None if patient is None else patient[parts[client]],
    )


def _capped(config: Config, records: Records, indices: Indices) -> Indices:
    """These training records, at most `data.max_records_per_group` of each patient."""
    if config.data.group_by is None:
        return indices
    limit = config.data.max_records_per_group
    return cap_patients(records, indices, limit=limit, seed=config.seed)


@lru_cache(maxsize=8)
def _refuse_spread_patients(
    data: DataSet, config: PartitionConfig, num_clients: int, seed: int
) -> None:
    """A patient's cap is per client, so it bounds a patient at one client only."""
    if data.train.patient is None:
        return  # nothing can be capped, which is refused
    parts = partition(data, config, num_clients=num_clients, seed=seed)
    holders = np.concatenate([np.unique(data.train.patient[part]) for part in parts])
    spread = np.count_nonzero(np.unique(holders, return_counts=True)[1] > 1)
    if spread:
        raise ConfigError(
            "data.group_by=patient promises something to patients whose records are all at one "
            f"client, but with data.partition.name={config.name} {spread} patients have records at "
            "several: use data.partition.name=iid, which keeps patients whole, or leave "
            "data.group_by null"
        )
