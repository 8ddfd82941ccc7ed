"""Two workers against one on `digits`, and the default experiment on local against Ray."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.rows import Row
from dp_fedmed.config import compose
from dp_fedmed.launch import run_federation

REPEATS = 3


def digits_seconds(workers: int) -> float:
    """Seconds of the training rounds alone, without evaluation, on `digits` with the CNN."""
    with tempfile.TemporaryDirectory() as folder:
        config = compose(
            [
                *("task=digits", "federation.num_clients=20", "federation.num_rounds=5"),
                *("privacy=none", "training.local_epochs=5", f"engine.workers={workers}"),
                *("federation.evaluate_every=0", "federation.client_evaluate_every=0"),
                f"run_dir={folder}/run",
            ]
        )
        result = run_federation(config)
        rows = (Path(result.run_dir) / "metrics.jsonl").read_text().splitlines()
    return sum(json.loads(row).get("seconds", 0.0) for row in rows)


def default_experiment_seconds(engine: str) -> float:
    """Seconds of `dp-fedmed run engine=…`, from the shell and back."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", "from dp_fedmed.cli import entry; entry()", "run"]
        started = time.perf_counter()
        subprocess.run(
            [*command, f"engine={engine}", f"run_dir={folder}/run"],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        return time.perf_counter() - started


def rows() -> list[Row]:
    pairs = [(digits_seconds(1), digits_seconds(2)) for _ in range(REPEATS)]
    one, two = (min(column) for column in zip(*pairs, strict=True))
    local, ray = default_experiment_seconds("local"), default_experiment_seconds("ray")
    return [
        Row("digits, 1 worker: 5 rounds of 20 clients", one, None, "s"),
        Row("digits, 2 workers: the same", two, None, "s"),
        Row("throughput of 2 workers / 1 worker", one / two, 1.6, "×", at_least=True),
        Row("default experiment on local, whole command", local, None, "s"),
        Row("default experiment on Ray, whole command", ray, None, "s"),
        Row("local ends sooner than Ray by", ray - local, 5.0, "s", at_least=True),
    ]
