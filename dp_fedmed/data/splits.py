"""The cuts into training, validation and test records, and one client's own validation part."""

from __future__ import annotations

import numpy as np

from dp_fedmed.config import ConfigError
from dp_fedmed.data.records import Array, Indices, Records
from dp_fedmed.randomness import stream


def stratified_cut(
    strata: Array, sizes: tuple[int, ...], *, seed: int, purpose: str
) -> tuple[Indices, ...]:
    """Disjoint sorted index arrays of these sizes, then one of the rest, alike in strata.

    Records are ordered by their (random) rank within their stratum, as a fraction of its size, so
    that any stretch of the order holds each stratum in proportion, to within one record.

    >>> first, rest = stratified_cut(np.array([0, 0, 0, 1, 1, 1]), (2,), seed=0, purpose="doc")
    >>> len(first), len(rest)
    (2, 4)
    """
    rng = stream(seed, "cut", purpose)
    position = np.empty(len(strata))
    for stratum in np.unique(strata):
        members = np.flatnonzero(strata == stratum)
        position[rng.permutation(members)] = (np.arange(len(members)) + 0.5) / len(members)
    order = np.lexsort((rng.permutation(len(strata)), position))
    return tuple(np.sort(piece) for piece in np.split(order, np.cumsum(sizes)))


def split_records(
    records: Records,
    *,
    val_fraction: float,
    test_fraction: float,
    seed: int,
    strata: Array | None = None,
    test: Records | None = None,
) -> tuple[Records, Records, Records]:
    """Cut records into (train, val, test); with a test part of its own only val is cut.

    Args:
        records: what is cut.
        val_fraction: share of all records for validation, at least one record.
        test_fraction: share of all records for the test, at least one record; unused with `test`.
        seed: the run's seed.
        strata: what to balance over the parts; the class ids unless given.
        test: an official test part, kept whole.

    Raises:
        ConfigError: if a part would be empty.
    """
    n = len(records)
    num_val = max(1, round(n * val_fraction))
    num_test = 0 if test is not None else max(1, round(n * test_fraction))
    if num_val + num_test >= n:
        raise ConfigError(
            f"data.val_fraction={val_fraction:g} and data.test_fraction={test_fraction:g} of {n} "
            "records leave nothing to train on: lower them or give more records"
        )
    labels = strata if strata is not None else records.y
    test_rows, val_rows, train_rows = stratified_cut(
        labels, (num_test, num_val), seed=seed, purpose="train-val-test"
    )
    last = test if test is not None else records.subset(test_rows)
    return records.subset(train_rows), records.subset(val_rows), last


def cap_groups(
    records: Records, indices: Indices, *, limit: int, seed: int, client: int
) -> Indices:
    """At most `limit` records of each group, chosen by a draw that looks at no record.

    Raises:
        ConfigError: if the data set has no groups.

    >>> records = Records(np.zeros((4, 1), np.float32), np.zeros(4, int), np.array([7, 7, 7, 8]))
    >>> len(cap_groups(records, np.arange(4), limit=2, seed=0, client=0))
    3
    """
    if records.groups is None:
        raise ConfigError(
            "data.group_by=groups needs a data set whose loader fills Records.groups: leave "
            "data.group_by null, or give your own loader with data.name"
        )
    kept: list[int] = []
    seen: dict[int, int] = {}
    for index in stream(seed, "group-cap", client).permutation(indices):
        group = int(records.groups[index])
        seen[group] = seen.get(group, 0) + 1
        if seen[group] <= limit:
            kept.append(int(index))
    return np.array(sorted(kept), dtype=np.int64)


def in_proportion(records: Records, own: Records, *, seed: int, client: str) -> Records:
    """As many of these records as keep the proportions in which a client holds their groups.

    Within a group, kinds stay in proportion too. Without groups, or with one only, it is all.

    >>> def some(*groups):
    ...     n = len(groups)
    ...     return Records(np.zeros((n, 1), np.float32), np.zeros(n, int), np.array(groups))
    >>> all_groups, own = some(0, 0, 0, 0, 1, 1, 1, 1, 2), some(0, 0, 1)
    >>> in_proportion(all_groups, own, seed=0, client="a").groups.tolist()
    [0, 0, 0, 0, 1, 1]
    """
    if records.groups is None or own.groups is None or len(own) == 0:
        return records
    held = {group: np.count_nonzero(own.groups == group) for group in np.unique(own.groups)}
    there = {group: np.count_nonzero(records.groups == group) for group in held}
    scale = min((there[group] / held[group] for group in held if there[group]), default=0.0)
    kept = []
    for group, count in held.items():
        members = np.flatnonzero(records.groups == group)
        purpose = f"evaluation/{client}/{group}"
        share = (round(scale * count),)
        kept.append(
            members[
                stratified_cut(records.image_labels[members], share, seed=seed, purpose=purpose)[0]
            ]
        )
    return records.subset(np.sort(np.concatenate(kept)))


def split_client(
    indices: Array, *, val_fraction: float, seed: int, client: int
) -> tuple[Indices, Indices]:
    """One client's (training, local validation) indices, both sorted.

    A client with two records or more keeps at least one for validation; a client with one record
    trains on it and has an empty validation part; ``val_fraction=0`` means no validation part.

    >>> train, val = split_client(np.arange(10), val_fraction=0.2, seed=0, client=3)
    >>> len(train), len(val)
    (8, 2)
    """
    n = len(indices)
    num_val = 0 if val_fraction <= 0 else min(max(1, round(n * val_fraction)), max(n - 1, 0))
    order = stream(seed, "client-val", client).permutation(np.asarray(indices, dtype=np.int64))
    return np.sort(order[num_val:]), np.sort(order[:num_val])
