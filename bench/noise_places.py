"""`python -m bench.noise_places [task ...]`: what it is worth that the server draws the noise once.

Each figure is the test metric of a run with the recipe of style `sample` that ships: mean and
standard deviation over seeds 0, 1 and 2. The noise is secret and new in every run.
"""

from __future__ import annotations

import argparse
import logging
import sys

from bench.utility import SEEDS, Experiment, cell, measure

TASKS = {"digits": "accuracy", "medmnist": "auroc", "cells": "dice", "textures": "image_auroc"}
EPSILONS = (8.0, 3.0, 1.0)
SITES = (5, 20)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.noise_places", description=__doc__)
    parser.add_argument("tasks", nargs="*", help=f"of {', '.join(TASKS)}; all unless given")
    chosen = parser.parse_args().tasks or list(TASKS)
    if unknown := set(chosen) - set(TASKS):
        parser.error(f"no task {sorted(unknown)[0]!r}: choose from {', '.join(TASKS)}")
    logging.disable(logging.WARNING)
    print("| task, metric | sites | `privacy.noise` |", *(f"ε = {e:g} |" for e in EPSILONS))
    print("|---|---|---|" + "---|" * len(EPSILONS))
    for task in chosen:
        for sites in SITES:
            for place in ("client", "server"):
                cells = []
                for epsilon in EPSILONS:
                    words = Experiment(task, "sample", TASKS[task]).overrides(epsilon)
                    own = [f"federation.num_clients={sites}", f"privacy.noise={place}"]
                    cells.append(cell(measure((*words, *own), TASKS[task], SEEDS), None))
                head = f"| {task}, {TASKS[task]} | {sites} | `{place}` |"
                print(head, *(f"{each} |" for each in cells), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
