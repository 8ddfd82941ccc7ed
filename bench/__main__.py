"""`python -m bench [part ...]`: one table a part; exit 1 if a target is missed."""

from __future__ import annotations

import argparse
import importlib
import sys

from rich.console import Console

from bench.rows import Row, table

PARTS = {
    "startup": "how fast the command line answers",
    "idle_round": "what a round costs with clients that do nothing, on each engine",
    "real_round": "a whole round with real work, against a bare two-process PyTorch loop",
    "user_round": "a user-level round, against the same bare loop",
    "private_round": "a DP-SGD round, against a bare two-process loop over Opacus' optimizer",
    "per_sample": "per-sample gradients, against Opacus' own ways and plain SGD",
    "durability": "what surviving a crash costs, and starting again",
    "accountant": "recording, reporting and calibrating privacy",
    "scaling": "two workers against one, and the default experiment on local against Ray",
    "sweep": "15 runs on a pool of processes, against one after another",
    "many_clients": "memory with ten thousand clients",
    "faults": "clients that fail, lag and die: the right ε, and nothing left behind",
    "masked_round": "a round with secure aggregation, against the same with noise at the server",
    "secure_aggregation": "masks, shares and unmasking, per client and at the server",
    "anomaly": "PatchCore: selection against anomalib's, scoring, metrics",
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "parts", nargs="*", help="; ".join(f"{name}: {what}" for name, what in PARTS.items())
    )
    chosen = parser.parse_args().parts or list(PARTS)
    unknown = set(chosen) - set(PARTS)
    if unknown:
        parser.error(f"no part {sorted(unknown)[0]!r}: choose from {', '.join(PARTS)}")
    console = Console()
    rows: list[Row] = []
    for part in chosen:
        with console.status(f"measuring {part}: {PARTS[part]}"):
            measured = importlib.import_module(f"bench.{part}").rows()
        console.print(table(measured, f"{part}: {PARTS[part]}"))
        rows += measured
    missed = [row.name for row in rows if row.met is False]
    console.print(f"{len(rows) - len(missed)} of {len(rows)} figures within their targets")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
