"""`python -m bench.noise_places [task ...]`: what it is worth who draws the noise.

Each figure is the test metric of a run with the recipe of style `sample` that ships: mean and
standard deviation over seeds 0, 1 and 2. The noise is secret and new in every run. `hybrid`
compares two noises, as the style has them by default, with one noise for both guarantees.
"""

from __future__ import annotations

import argparse
import logging
import sys

from bench.utility import SEEDS, Experiment, cell, measure, pneumonia_path

TASKS = {
    "digits": "accuracy",
    "medmnist": "auroc",
    "cells": "dice",
    "textures": "image_auroc",
    "mvtec_folder": "image_auroc",
}
#: What a task needs besides its recipe: the magnetic tiles are a folder.
OWN = {"mvtec_folder": (f"data.path={pneumonia_path().parent / 'magnetic_tile'}",)}
#: Style `hybrid` with 50 clients: with two noises as it ships, and with one noise for both.
ONE_NOISE = (
    *("privacy.noise=server", "federation.sampler=all", "federation.num_clients=50"),
    "privacy.user.max_grad_norm=1",
)
HYBRID = {
    ("digits", "two"): ("federation.num_clients=50",),
    ("digits", "one"): ("recipe=digits-sample", *ONE_NOISE),
    ("medmnist", "two"): (),
    ("medmnist", "one"): ("recipe=medmnist-sample", *ONE_NOISE, "training.lr=25"),
}
EPSILONS = (8.0, 3.0, 1.0)
PLACES = ("client", "shares", "server")
SITES = (5, 20)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.noise_places", description=__doc__)
    known = [*TASKS, "hybrid"]
    parser.add_argument("tasks", nargs="*", help=f"of {', '.join(known)}; all unless given")
    parser.add_argument("--places", nargs="+", default=PLACES, choices=PLACES)
    arguments = parser.parse_args()
    chosen = arguments.tasks or known
    if unknown := set(chosen) - set(known):
        parser.error(f"no task {sorted(unknown)[0]!r}: choose from {', '.join(known)}")
    logging.disable(logging.WARNING)
    print("| task, metric | sites | `privacy.noise` |", *(f"ε = {e:g} |" for e in EPSILONS))
    print("|---|---|---|" + "---|" * len(EPSILONS))
    for task in [name for name in chosen if name in TASKS]:
        for sites in SITES:
            for place in arguments.places:
                cells = []
                for epsilon in EPSILONS:
                    words = Experiment(task, "sample", TASKS[task]).overrides(epsilon)
                    own = [f"federation.num_clients={sites}", f"privacy.noise={place}"]
                    own += [*OWN.get(task, ())]
                    cells.append(cell(measure((*words, *own), TASKS[task], SEEDS), None))
                head = f"| {task}, {TASKS[task]} | {sites} | `{place}` |"
                print(head, *(f"{each} |" for each in cells), flush=True)
    for (task, noises), own in HYBRID.items() if "hybrid" in chosen else ():
        cells = []
        for epsilon in EPSILONS:
            words = Experiment(task, "hybrid", TASKS[task]).overrides(epsilon)
            cells.append(cell(measure((*words, *own), TASKS[task], SEEDS), None))
        print(f"| hybrid {task}, {TASKS[task]}: {noises} |", *(f"{each} |" for each in cells))
    return 0


if __name__ == "__main__":
    sys.exit(main())
