"""`python -m bench.utility [--quick] [row ...]`: what privacy costs, as docs/utility.md shows it.

Each figure is the test metric of the model that a run gives, with the recipe that ships: mean and
standard deviation over seeds 0, 1 and 2 (diabetes: 0 to 4), which decide the cut of the data, the
clients and the initial weights. The noise is secret and new in every run, so figures move within
their spread.
"""

from __future__ import annotations

import argparse
import functools
import logging
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dp_fedmed.config import compose
from dp_fedmed.launch import run_federation

EPSILONS = (math.inf, 8.0, 3.0, 1.0)
SEEDS = (0, 1, 2)
PNEUMONIA = "pneumoniamnist.npz"


@dataclass(frozen=True)
class Experiment:
    """One line of the table: a task, a style, a metric, and the least that it must reach."""

    task: str
    style: str
    metric: str
    floor: tuple[float, ...] = ()
    seeds: tuple[int, ...] = SEEDS

    def overrides(self, epsilon: float) -> list[str]:
        """What a user would type for this ε; infinity means without privacy."""
        chosen = [f"task={self.task}"]
        if self.task == "medmnist":
            chosen.append(f"data.path={pneumonia_path()}")
        if math.isinf(epsilon):
            return [*chosen, "privacy=none"]
        chosen.append(f"privacy={self.style}")
        levels = ("sample", "user") if self.style == "hybrid" else (self.style,)
        return chosen + [f"privacy.{level}.target_epsilon={epsilon:g}" for level in levels]


EXPERIMENTS = {
    "digits-sample": Experiment("digits", "sample", "accuracy", (0.942, 0.920, 0.888, 0.818)),
    "medmnist-sample": Experiment("medmnist", "sample", "auroc", (0.907, 0.906, 0.905, 0.900)),
    "breast_cancer-sample": Experiment("breast_cancer", "sample", "balanced_accuracy"),
    "cells-sample": Experiment("cells", "sample", "dice", (0.0, 0.75)),
    "digits-user": Experiment("digits", "user", "accuracy"),
    "medmnist-user": Experiment("medmnist", "user", "auroc"),
    "breast_cancer-user": Experiment("breast_cancer", "user", "balanced_accuracy"),
    "cells-user": Experiment("cells", "user", "dice"),
    "digits-hybrid": Experiment("digits", "hybrid", "accuracy"),
    "medmnist-hybrid": Experiment("medmnist", "hybrid", "auroc"),
    "breast_cancer-hybrid": Experiment("breast_cancer", "hybrid", "balanced_accuracy"),
    "cells-hybrid": Experiment("cells", "hybrid", "dice"),
    **{
        f"diabetes-{style}": Experiment("diabetes", style, "rmse", seeds=tuple(range(5)))
        for style in ("sample", "user", "hybrid")
    },
}


def pneumonia_path() -> Path:
    """PneumoniaMNIST in $DP_FEDMED_DATA, else in ../shared/data beside the checkout."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    return Path(os.environ.get("DP_FEDMED_DATA", beside)) / PNEUMONIA


@functools.cache
def measure(overrides: tuple[str, ...], metric: str, seeds: tuple[int, ...]) -> list[float]:
    """The test metric for each seed; what several rows share is measured once."""
    scores = []
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            quiet = ["federation.evaluate_every=0", "federation.client_evaluate_every=0"]
            where = [f"seed={seed}", f"run_dir={folder}/run"]
            result = run_federation(compose([*overrides, *quiet, *where]))
        scores.append(result.test[metric])
        print(*overrides, f"seed={seed}: {metric} {scores[-1]:.4f}", file=sys.stderr)
    return scores


def cell(scores: Sequence[float], floor: float | None) -> str:
    """A figure of the table; a mean below its floor says so.

    >>> cell([0.9, 0.91, 0.92], None), cell([0.7], 0.8)
    ('0.910 ± 0.010', '0.700 (below 0.8)')
    """
    mean = statistics.mean(scores)
    spread = f" ± {statistics.stdev(scores):.3f}" if len(scores) > 1 else ""
    below = f" (below {floor:g})" if floor is not None and mean < floor else ""
    return f"{mean:.3f}{spread}{below}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.utility", description=__doc__)
    parser.add_argument("rows", nargs="*", help=f"of {', '.join(EXPERIMENTS)}; all by default")
    parser.add_argument("--quick", action="store_true", help="seed 0 only")
    arguments = parser.parse_args()
    unknown = set(arguments.rows) - set(EXPERIMENTS)
    if unknown:
        parser.error(f"no row {sorted(unknown)[0]!r}: choose from {', '.join(EXPERIMENTS)}")
    logging.disable(logging.WARNING)
    missed = False
    heads = ["no privacy", *(f"ε = {epsilon:g}" for epsilon in EPSILONS[1:])]
    print(f"| row | test metric | {' | '.join(heads)} |\n|{'---|' * (2 + len(heads))}")
    for name in arguments.rows or EXPERIMENTS:
        experiment = EXPERIMENTS[name]
        if experiment.task == "medmnist" and not pneumonia_path().is_file():
            print(f"| {name} | skipped: no {pneumonia_path()}; set DP_FEDMED_DATA |")
            continue
        seeds = SEEDS[:1] if arguments.quick else experiment.seeds
        cells = []
        for number, epsilon in enumerate(EPSILONS):
            floor = experiment.floor[number] if number < len(experiment.floor) else None
            overrides = tuple(experiment.overrides(epsilon))
            cells.append(cell(measure(overrides, experiment.metric, seeds), floor))
        missed |= any("below" in text for text in cells)
        print(f"| {name} | {experiment.metric} | {' | '.join(cells)} |", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
