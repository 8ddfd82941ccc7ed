"""Ten thousand clients, a cohort of one hundred: memory, and what an idle client costs."""

from __future__ import annotations

import os
import tempfile

import numpy as np
import psutil

from bench.rows import Row
from dp_fedmed.config import DataConfig, compose
from dp_fedmed.data import DataSet, Records
from dp_fedmed.federation.rounds import RoundRecord
from dp_fedmed.launch import run_federation
from dp_fedmed.reporting.display import LogDisplay

CLIENTS, ROUNDS = 10_000, 20


def load(config: DataConfig, seed: int) -> DataSet:
    """Four random records for each client."""
    rng = np.random.default_rng(seed)

    def records(n: int) -> Records:
        return Records(rng.normal(size=(n, 30)).astype(np.float32), np.arange(n) % 2)

    return DataSet(records(4 * CLIENTS), records(50), records(50), 2, ("no", "yes"))


class MemoryWatch(LogDisplay):
    """Notes the memory of this process and its workers, and the time, after every round."""

    def __init__(self) -> None:
        self.bytes: list[int] = []
        self.seconds: list[float] = []

    def round(self, record: RoundRecord) -> None:
        """Take a reading."""
        this = psutil.Process(os.getpid())
        family = [this, *this.children(recursive=True)]
        self.bytes.append(sum(p.memory_full_info().pss for p in family))
        self.seconds.append(record.seconds)


def rows() -> list[Row]:
    watch = MemoryWatch()
    with tempfile.TemporaryDirectory() as folder:
        run_federation(
            compose(
                [
                    *(
                        "privacy=none",
                        "allow_code=[bench]",
                        "data.name=bench.many_clients.load",
                        "data.client_val_fraction=0",
                    ),
                    *(f"federation.num_clients={CLIENTS}", "federation.sample_rate=0.01"),
                    *(f"federation.num_rounds={ROUNDS}", "engine.workers=2"),
                    *("federation.client_evaluate_every=0", f"run_dir={folder}/run"),
                ]
            ),
            watch,
        )
    settled = watch.bytes[ROUNDS // 2]
    return [
        Row("memory with 10,000 clients, cohort 100", max(watch.bytes) / 2**30, 2.0, "GB"),
        Row(
            "growth over the second half of the rounds",
            (watch.bytes[-1] - settled) / 2**20,
            8,
            "MB",
        ),
        Row("a round of 100 clients", 1e3 * min(watch.seconds[2:]), None, "ms"),
    ]
