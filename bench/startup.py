"""How fast the command line answers: help, plans, and a page about a run."""

from __future__ import annotations

import subprocess
import sys
import tempfile

from bench.rows import Row, best_of


def _answer(*arguments: str) -> None:
    command = [sys.executable, "-c", "from dp_fedmed.cli import entry; entry()", *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _page() -> float:
    with tempfile.TemporaryDirectory() as folder:
        _answer("run", f"run_dir={folder}/run")
        return best_of(3, lambda: _answer("report", f"{folder}/run"))


def rows() -> list[Row]:
    planned = ("plan", "task=digits", "privacy=hybrid", "federation.num_clients=50")
    skewed = ("plan", "task=digits", "privacy=sample", "data.partition.name=dirichlet")
    return [
        Row("dp-fedmed --help", best_of(5, lambda: _answer("--help")), 0.5, "s"),
        Row("dp-fedmed run --help", best_of(5, lambda: _answer("run", "--help")), 1.0, "s"),
        Row("plan of 50 clients, hybrid", best_of(3, lambda: _answer(*planned)), 4.0, "s"),
        Row("the same with --fast", best_of(3, lambda: _answer(*planned, "--fast")), 1.5, "s"),
        Row("plan of unequal clients", best_of(3, lambda: _answer(*skewed)), 4.0, "s"),
        Row("the same with --fast", best_of(3, lambda: _answer(*skewed, "--fast")), 1.5, "s"),
        Row("report of a run", _page(), 3.0, "s"),
    ]
