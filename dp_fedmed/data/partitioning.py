"""Who holds which training records: seeded partitions, as flwr-datasets' partitioners make them.

Guarantees: every training record has exactly one client, every client has at least
``data.partition.min_records``, a patient is never split (only `natural` keeps sites whole instead),
and the same seed gives the same partition in every process. What cannot be satisfied is an error
that names a value that works.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from dp_fedmed.config import PartitionConfig, PartitionName
from dp_fedmed.data.records import Array, DataSet, Indices, Records
from dp_fedmed.data.splits import typical, units
from dp_fedmed.errors import ConfigError
from dp_fedmed.privacy.streams.reproducible import derive_seed, stream


def partition(
    dataset: DataSet, config: PartitionConfig, *, num_clients: int, seed: int
) -> tuple[Indices, ...]:
    """Sorted, disjoint index arrays into ``dataset.train``, one per client; cached per process.

    `dirichlet` and `pathological` go by a record's class. A mask has no one class, so for
    segmentation they go by the quartile of its foreground fraction, a coarse label that is used
    to simulate the clients and for nothing else; for a regression by bins of the target between
    public cuts. `size_skewed` gives client i a share that grows
    with i, i² or eⁱ (`skew`). Where patients are known, all of these deal out whole patients, each
    with the median class of its records. `natural` keeps each site whole; when there are more sites
    than clients they are dealt out round-robin, largest first.

    Args:
        dataset: what `load_data` returned.
        config: the ``data.partition`` section.
        num_clients: ``federation.num_clients``.
        seed: the run's seed.

    Raises:
        ConfigError: if some client would have fewer than ``min_records`` records.

    >>> from dp_fedmed.config import DataConfig
    >>> from dp_fedmed.data import load_data
    >>> breast = load_data(DataConfig(), seed=0)
    >>> [len(part) for part in partition(breast, PartitionConfig(), num_clients=4, seed=0)]
    [93, 93, 92, 92]
    """
    return _partition(dataset, config, num_clients, seed)


@lru_cache(maxsize=8)
def _partition(
    dataset: DataSet, config: PartitionConfig, num_clients: int, seed: int
) -> tuple[Indices, ...]:
    train = dataset.train
    _check_counts(train, config, num_clients)
    parts = _draw(train, config, num_clients, seed)
    _refuse_one_bin(train, config.name)
    if _smallest(parts) < config.min_records:
        raise ConfigError(_too_small(train, config, num_clients, seed, parts))
    frozen = tuple(np.sort(np.asarray(part, dtype=np.int64)) for part in parts)
    for part in frozen:
        part.flags.writeable = False
    return frozen


def partition_labels(records: Records) -> Indices:
    """What `dirichlet` and `pathological` go by: the class, or a mask's foreground quartile.

    Where no mask has a foreground (normal images, for anomaly detection) it is the category; for a
    regression, the bin of the target by public cuts.
    """
    if records.is_regression:
        return np.asarray(records.image_labels, dtype=np.int64)
    if records.y.ndim == 1:
        return records.y.astype(np.int64)
    if records.site is not None and not records.y.any():
        return np.asarray(np.unique(records.site, return_inverse=True)[1], dtype=np.int64)
    foreground = np.count_nonzero(records.y, axis=(1, 2))
    rank = np.argsort(np.argsort(foreground, kind="stable"), kind="stable")
    return rank * 4 // len(rank)


def _draw(train: Records, config: PartitionConfig, num_clients: int, seed: int) -> list[Indices]:
    """One partition of the configured kind; an empty list if some client would get nothing."""
    if config.name is PartitionName.natural:
        return _natural(train.site, num_clients)
    unit, count = units(train)
    # The partitioners cut their input in the order given: shuffling first makes shares random.
    order = stream(seed, "partition", config.name).permutation(count)
    parts = _deal(train, config, num_clients, seed, order)
    if not parts:
        return []
    if train.patient is None:
        return parts
    client_of = np.empty(count, dtype=np.int64)
    for client, part in enumerate(parts):
        client_of[part] = client
    return _by_client(client_of[unit], num_clients)


def _deal(
    train: Records, config: PartitionConfig, num_clients: int, seed: int, order: Indices
) -> list[Indices]:
    """Which units (patients where they are known, else records) each client gets."""
    if config.name is PartitionName.iid:
        # IidPartitioner makes this same cut, but reading 10,000 shards from it takes 7.6 s.
        return np.array_split(order, num_clients)
    unit, _ = units(train)
    labels = typical(partition_labels(train), unit)[order]
    if config.name is PartitionName.dirichlet:
        parts = _dirichlet(labels, np.bincount(unit)[order], config, num_clients, seed)
    elif config.name is PartitionName.pathological:
        parts = _pathological(labels, config.classes_per_client, num_clients, seed)
    else:
        parts = _size_skewed(len(order), config.skew, num_clients)
    return [order[part] for part in parts]


def _by_client(client_of_record: Indices, num_clients: int) -> list[Indices]:
    order = np.argsort(client_of_record, kind="stable")
    return np.split(order, np.cumsum(np.bincount(client_of_record, minlength=num_clients))[:-1])


def _refuse_one_bin(train: Records, name: PartitionName) -> None:
    by_class = name in (PartitionName.dirichlet, PartitionName.pathological)
    if by_class and train.is_regression and len(np.unique(train.image_labels)) < 2:
        raise ConfigError(
            f"data.partition.name={name} takes bins of the target for classes, and all training "
            "records are in one: give Target(edges=...) cuts and Records(labels=target.bins(y)), "
            "or use data.partition.name=iid"
        )


def _dirichlet(
    labels: Indices, records: Indices, config: PartitionConfig, num_clients: int, seed: int
) -> list[Indices]:
    """The first of a few draws with enough records for every client, else the best of them."""
    best: list[Indices] = []
    most = -1
    # Few draws where it takes long to learn that it is hopeless.
    for attempt in range(50 if num_clients <= 1000 else 5):
        rng = np.random.default_rng(derive_seed(seed, "dirichlet", attempt))
        parts = _dirichlet_draw(labels, float(config.alpha), num_clients, rng)
        smallest = min(int(records[part].sum()) for part in parts)
        if smallest > most:
            best, most = parts, smallest
        if most >= config.min_records:
            break
    return best


def _dirichlet_draw(
    labels: Indices, alpha: float, num_clients: int, rng: np.random.Generator
) -> list[Indices]:
    """Record for record what flwr-datasets' DirichletPartitioner draws (the tests compare them).

    By hand, since that import takes longer than everything else that plans a run: 1.4 s, most of it
    for seaborn.
    """
    parts: list[list[Indices]] = [[] for _ in range(num_clients)]
    for label in np.unique(labels):
        own = np.flatnonzero(labels == label)
        shares = rng.dirichlet(np.full(num_clients, alpha))
        cuts = (np.cumsum(shares) * len(own)).astype(np.int64)[:-1]
        for part, piece in zip(parts, np.split(own, cuts), strict=True):
            part.append(piece)
    return [np.concatenate(part) for part in parts]


def _pathological(
    labels: Indices, classes_per_client: int, num_clients: int, seed: int
) -> list[Indices]:
    """Shards of one class each, `classes_per_client` different ones per client (McMahan 2017).

    The shards are those of flwr-datasets' PathologicalPartitioner with one class each. Dealing
    them out here uses every record; the partitioner leaves whole classes out when clients are few.
    """
    classes = np.unique(labels)
    num_classes = len(classes)
    num_shards = num_clients * classes_per_client
    if classes_per_client > num_classes:
        raise ConfigError(
            f"data.partition.classes_per_client={classes_per_client} is more than the "
            f"{num_classes} classes of the data: use {num_classes} or fewer"
        )
    if num_shards < num_classes:
        raise ConfigError(
            f"data.partition.classes_per_client={classes_per_client} with federation.num_clients="
            f"{num_clients} leaves {num_classes - num_shards} of {num_classes} classes to nobody: "
            f"use data.partition.classes_per_client={-(-num_classes // num_clients)}"
        )
    stacks = []
    for number, label in enumerate(classes):
        own, count = np.flatnonzero(labels == label), len(range(number, num_shards, num_classes))
        if count > len(own):
            return []
        stacks.append(np.array_split(own, count))
    # Taking the fullest stacks first keeps them level.
    rng = stream(seed, "pathological")
    parts = []
    for _ in range(num_clients):
        left = np.array([len(stack) for stack in stacks])
        chosen = np.lexsort((rng.random(num_classes), -left))[:classes_per_client]
        parts.append(np.concatenate([stacks[number].pop() for number in chosen]))
    return parts


def _size_skewed(num_units: int, skew: str, num_clients: int) -> list[Indices]:
    """Shares of flwr-datasets' Linear-, Square- and ExponentialPartitioner, which floor them.

    The last client gets what is left over.
    """
    grow = {"linear": np.positive, "square": np.square, "exponential": np.exp}[skew]
    with np.errstate(all="ignore"):
        weights = grow(np.arange(1.0, num_clients + 1))
        sizes = np.asarray(weights / weights.sum() * num_units, dtype=np.int64)
    sizes[-1] += num_units - sizes.sum()
    return np.split(np.arange(num_units), np.cumsum(sizes)[:-1]) if sizes.min() >= 1 else []


def _natural(site: Array | None, num_clients: int) -> list[Indices]:
    if site is None:
        raise ConfigError(
            "data.partition.name=natural needs to know each record's site, and this data set does "
            "not say: use data.partition.name=iid, or a loader that sets Records.site"
        )
    _, site_of_record, sizes = np.unique(site, return_inverse=True, return_counts=True)
    if len(sizes) < num_clients:
        raise ConfigError(
            f"data.partition.name=natural finds {len(sizes)} sites in the training records, "
            f"fewer than federation.num_clients={num_clients}: use "
            f"federation.num_clients={len(sizes)} or fewer"
        )
    client_of_site = np.empty(len(sizes), dtype=np.int64)
    client_of_site[np.argsort(-sizes, kind="stable")] = np.arange(len(sizes)) % num_clients
    return _by_client(client_of_site[site_of_record], num_clients)


def _smallest(parts: list[Indices]) -> int:
    return min((len(part) for part in parts), default=0)


def _check_counts(train: Records, config: PartitionConfig, num_clients: int) -> None:
    num_records, num_units = len(train), units(train)[1]
    if num_units < num_clients <= num_records:
        raise ConfigError(
            f"federation.num_clients={num_clients} is more than the {num_units} patients of the "
            f"training records, who stay whole: use federation.num_clients={num_units} or fewer"
        )
    if num_clients * config.min_records > num_records:
        most = num_records // config.min_records
        remedies = [f"federation.num_clients={most} or fewer"] if most else []
        if num_records >= num_clients:
            remedies.append(f"data.partition.min_records={num_records // num_clients}")
        raise ConfigError(
            f"federation.num_clients={num_clients} with data.partition.min_records="
            f"{config.min_records} needs {num_clients * config.min_records} training records, and "
            f"there are {num_records}: use {' or '.join(remedies) or 'more records'}"
        )


def _too_small(
    train: Records, config: PartitionConfig, num_clients: int, seed: int, parts: list[Indices]
) -> str:
    """The message for a partition that starves a client, with values that were tried and work."""
    remedies = []
    if smallest := _smallest(parts):
        remedies.append(f"data.partition.min_records={smallest}")
    works, fails = 0, num_clients
    while fails - works > max(1, num_clients // 50):
        middle = (works + fails) // 2
        try:
            enough = _smallest(_draw(train, config, middle, seed)) >= config.min_records
        except ConfigError:
            enough = False
        works, fails = (middle, fails) if enough else (works, middle)
    if works:
        remedies.append(f"federation.num_clients={works}")
    if config.name is PartitionName.dirichlet:
        remedies.append(f"a data.partition.alpha above {config.alpha:g}")
    return (
        f"data.partition.name={config.name} cannot give each of federation.num_clients="
        f"{num_clients} clients data.partition.min_records={config.min_records} of the "
        f"{len(train)} training records: use {', or '.join(remedies) or 'another partition'}"
    )
