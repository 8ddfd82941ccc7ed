"""The cuts into training, validation and test records, and one client's own validation part.

Where patients are known, no cut divides one. What a client trains on is chosen for each patient by
a hash of that patient alone: removing one patient changes nothing about the others.
"""

from __future__ import annotations

import numpy as np

from dp_fedmed.data.records import Array, Indices, Records
from dp_fedmed.errors import ConfigError
from dp_fedmed.privacy.streams.reproducible import derive_seed, stream


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

    Where patients are known it is patients that are cut, and the fractions are theirs.

    Args:
        records: what is cut.
        val_fraction: share of all records for validation, at least one record.
        test_fraction: share of all records for the test, at least one record; unused with `test`.
        seed: the run's seed.
        strata: what to balance over the parts; the class ids, or bins of the target, unless given.
        test: an official test part, kept whole.

    Raises:
        ConfigError: if a part would be empty.
    """
    unit, n = units(records)
    num_val = max(1, round(n * val_fraction))
    num_test = 0 if test is not None else max(1, round(n * test_fraction))
    if num_val + num_test >= n:
        raise ConfigError(
            f"data.val_fraction={val_fraction:g} and data.test_fraction={test_fraction:g} of {n} "
            f"{'records' if records.patient is None else 'patients'} leave nothing to train on: "
            "lower them or give more"
        )
    labels = strata if strata is not None else records.image_labels
    pieces = stratified_cut(
        typical(labels, unit), (num_test, num_val), seed=seed, purpose="train-val-test"
    )
    test_rows, val_rows, train_rows = (np.flatnonzero(np.isin(unit, piece)) for piece in pieces)
    last = test if test is not None else records.subset(test_rows)
    return records.subset(train_rows), records.subset(val_rows), last


def units(records: Records) -> tuple[Indices, int]:
    """What stays whole: the number of each record's patient, else of the record; and how many.

    >>> units(Records(np.zeros((3, 1), np.float32), np.zeros(3, int), patient=np.array([7, 9, 7])))
    (array([0, 1, 0]), 2)
    """
    if records.patient is None:
        return np.arange(len(records), dtype=np.int64), len(records)
    ids, unit = np.unique(records.patient, return_inverse=True)
    return unit.astype(np.int64), len(ids)


def typical(values: Array, unit: Indices) -> Array:
    """The median value of each unit's records: one class for a patient with records of several.

    >>> typical(np.array([1, 0, 1, 4]), np.array([0, 0, 0, 1]))
    array([1, 4])
    """
    order = np.lexsort((values, unit))
    sizes = np.bincount(unit)
    return np.asarray(values[order[np.cumsum(sizes) - sizes + sizes // 2]])


def cap_patients(records: Records, indices: Indices, *, limit: int, seed: int) -> Indices:
    """At most `limit` of these records of each patient, chosen by a hash of that patient alone.

    Raises:
        ConfigError: if the data set does not say whose its records are.

    >>> patients = np.array([7, 7, 7, 8])
    >>> records = Records(np.zeros((4, 1), np.float32), np.zeros(4, int), patient=patients)
    >>> len(cap_patients(records, np.arange(4), limit=2, seed=0))
    3
    """
    if records.patient is None:
        raise ConfigError(
            "data.group_by=patient needs a data set whose loader fills Records.patient: leave "
            "data.group_by null, or give your own loader with data.name"
        )
    kept: list[Indices] = []
    order = np.argsort(records.patient[indices], kind="stable")
    ids, sizes = np.unique(records.patient[indices], return_counts=True)
    for patient, own in zip(ids, np.split(indices[order], np.cumsum(sizes)[:-1]), strict=True):
        if len(own) > limit:
            draws = [derive_seed(seed, "patient-cap", str(patient), k) for k in range(len(own))]
            own = own[sorted(range(len(own)), key=draws.__getitem__)[:limit]]
        kept.append(own)
    return np.sort(np.concatenate(kept)) if kept else indices


def in_proportion(records: Records, own: Records, *, seed: int, client: str) -> Records:
    """As many of these records as keep the proportions in which a client holds their sites.

    Within a site, kinds stay in proportion too. Without sites, or with one only, it is all.

    >>> def some(*sites):
    ...     n = len(sites)
    ...     return Records(np.zeros((n, 1), np.float32), np.zeros(n, int), np.array(sites))
    >>> everywhere, own = some(0, 0, 0, 0, 1, 1, 1, 1, 2), some(0, 0, 1)
    >>> in_proportion(everywhere, own, seed=0, client="a").site.tolist()
    [0, 0, 0, 0, 1, 1]
    """
    if records.site is None or own.site is None or len(own) == 0:
        return records
    held = {site: np.count_nonzero(own.site == site) for site in np.unique(own.site)}
    there = {site: np.count_nonzero(records.site == site) for site in held}
    scale = min((there[site] / held[site] for site in held if there[site]), default=0.0)
    kept = []
    for site, count in held.items():
        members = np.flatnonzero(records.site == site)
        purpose = f"evaluation/{client}/{site}"
        share = (round(scale * count),)
        kept.append(
            members[
                stratified_cut(records.image_labels[members], share, seed=seed, purpose=purpose)[0]
            ]
        )
    return records.subset(np.sort(np.concatenate(kept)))


def split_client(
    indices: Array,
    *,
    val_fraction: float,
    seed: int,
    client: int,
    ids: Array | None = None,
    key: str = "data.client_val_fraction",
) -> tuple[Indices, Indices]:
    """One client's (training, local validation) indices, both sorted.

    A client with two records or more keeps at least one for validation; a client with one record
    trains on it and has an empty validation part; ``val_fraction=0`` means no validation part.

    With `ids` (`Records.patient` at these indices), all records of an id go to one side by a hash
    of that id, whoever else is there: then sizes vary, and validation may have nothing. `key` is
    the setting that the fraction comes from.

    Raises:
        ConfigError: if all of them go to validation.

    >>> train, val = split_client(np.arange(10), val_fraction=0.2, seed=0, client=3)
    >>> len(train), len(val)
    (8, 2)
    """
    indices = np.asarray(indices, dtype=np.int64)
    n = len(indices)
    if ids is None or val_fraction <= 0:
        num_val = 0 if val_fraction <= 0 else min(max(1, round(n * val_fraction)), max(n - 1, 0))
        order = stream(seed, "client-val", client).permutation(indices)
        return np.sort(order[num_val:]), np.sort(order[:num_val])
    known, unit = np.unique(ids, return_inverse=True)
    draws = np.array([derive_seed(seed, "client-val", str(one)) / 2**128 for one in known])
    is_val = draws[unit] < val_fraction
    if n and is_val.all():
        raise ConfigError(
            f"{key}={val_fraction:g} leaves a client nothing to train on, since patients stay "
            f"whole: use {key}=0, or fewer and larger clients"
        )
    return np.sort(indices[~is_val]), np.sort(indices[is_val])
