"""Tries the deliberate breaks; exits with 1 if one is not caught."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from tests.breaks import BREAKS
from tests.breaks.base import Break
from tests.checkout import copy_checkout


def fails(broken: Break, tree: Path) -> bool:
    """Whether the named test fails with the break in this copy of the checkout."""
    file = tree / "dp_fedmed" / broken.file
    sound = file.read_text(encoding="utf-8")
    file.write_text(sound.replace(broken.old, broken.new), encoding="utf-8")
    try:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-x",
                "-p",
                "no:cacheprovider",
                broken.caught_by,
            ],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
        )
    finally:
        file.write_text(sound, encoding="utf-8")
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{broken.name}: pytest could not run\n{done.stdout}{done.stderr}")
    return done.returncode == 1


def main(words: list[str]) -> int:
    """Try the breaks that are named, and print which test caught which."""
    wanted = [b for b in BREAKS if not words or any(word in b.name for word in words)]
    table = Table("broken on purpose", "where", "caught by", "")
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "checkout"
        copy_checkout(tree)
        for broken in track(wanted, description="breaking"):
            caught = fails(broken, tree)
            missed += not caught
            name = broken.caught_by.rsplit("/", 1)[-1]
            table.add_row(broken.name, broken.file, name, "caught" if caught else "[red]MISSED")
    Console(width=200).print(table)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
