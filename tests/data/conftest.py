from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dp_fedmed.data import DataSet, Records

SHARED = Path(
    os.environ.get("DP_FEDMED_DATA", Path(__file__).resolve().parents[2].parent / "shared" / "data")
)


@pytest.fixture
def shared_data() -> Path:
    if not SHARED.is_dir():
        pytest.skip(f"real data are not at {SHARED.name} (set DP_FEDMED_DATA)")
    return SHARED


@pytest.fixture(scope="session")
def make_dataset() -> Callable[..., DataSet]:
    """A classification set of n records with the given number of classes and natural ids."""

    def make(n: int, *, classes: int = 4, ids: int | None = None, seed: int = 0) -> DataSet:
        rng = np.random.Generator(np.random.Philox(seed))
        y = np.concatenate([np.arange(classes), rng.integers(0, classes, n - classes)])
        sites = None
        if ids:
            sites = np.concatenate([np.arange(ids), rng.integers(0, ids, n - ids) ** 2 % ids]) * 7
        records = Records(rng.random((n, 3), dtype=np.float32), y, sites)
        small = records.subset(np.arange(2))
        return DataSet(records, small, small, classes, tuple(f"c{i}" for i in range(classes)))

    return make
