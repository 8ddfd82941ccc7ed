"""How fast `dp-fedmed --help` and `dp-fedmed run --help` answer."""

from __future__ import annotations

import subprocess
import sys

from bench.rows import Row, best_of


def _answer(*arguments: str) -> None:
    command = [sys.executable, "-c", "from dp_fedmed.cli import entry; entry()", *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def rows() -> list[Row]:
    return [
        Row("dp-fedmed --help", best_of(5, lambda: _answer("--help")), 0.5, "s"),
        Row("dp-fedmed run --help", best_of(5, lambda: _answer("run", "--help")), 1.0, "s"),
    ]
