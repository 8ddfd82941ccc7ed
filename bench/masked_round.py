"""What secure aggregation costs a round: `privacy.noise=shares` over the same round with `server`.

Whole runs with ledger, checkpoints and report, 2 workers; a round is the difference of two lengths
of run, over the rounds between them. The lengths of both places alternate.
"""

from __future__ import annotations

import logging
import statistics
import tempfile
import time

from bench.rows import Row
from dp_fedmed.config import compose
from dp_fedmed.launch import run_federation

#: Width of the MLP's two hidden layers on digits, by its number of weights.
WIDTHS = {"10k": 70, "1M": 950}
SHORT, LONG, TIMES = 2, 8, 3


def seconds(place: str, clients: int, width: int, rounds: int) -> float:
    words = [
        *(
            "task=digits",
            "privacy=user",
            f"privacy.noise={place}",
            "privacy.user.target_epsilon=null",
        ),
        *("privacy.user.noise_multiplier=3", f"federation.num_clients={clients}"),
        *("federation.sampler=all", f"federation.num_rounds={rounds}", "engine.workers=2"),
        *("model._target_=dp_fedmed.models.MLP", f"model.args.hidden=[{width},{width}]"),
        *("federation.evaluate_every=0", "data.partition.min_records=1"),
    ]
    with tempfile.TemporaryDirectory() as folder:
        config = compose([*words, f"run_dir={folder}/run"])
        before = time.perf_counter()
        run_federation(config)
        return time.perf_counter() - before


def rows() -> list[Row]:
    logging.disable(logging.WARNING)
    found = []
    for clients in (10, 100):
        for name, width in WIDTHS.items():
            taken: dict[str, list[float]] = {"server": [], "shares": []}
            for _ in range(TIMES):
                for place, rounds in taken.items():
                    short, long = (seconds(place, clients, width, n) for n in (SHORT, LONG))
                    rounds.append((long - short) / (LONG - SHORT))
            server, shares = (statistics.median(taken[place]) for place in ("server", "shares"))
            what = f"{name} weights, {clients} clients"
            target = 2.0 if (clients, name) == (10, "1M") else None
            found += [
                Row(f"round with secure aggregation, {what}", 1e3 * shares, None, "ms"),
                Row(f"the same / noise at the server, {what}", shares / server, target),
            ]
    return found
