"""The house in numbers: rooms in a ring, fan-out, lines, and the way of one round through it.

`python -m tools.house` prints them beside their targets, and exits with 1 if one is missed.
"""

from __future__ import annotations

import ast
import contextlib
import io
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "dp_fedmed"
TARGETS = {
    "rooms in a ring, lazy imports left out": 0,
    "rooms in a ring": 0,
    "largest fan-out of a file": 14,
    "lines of the longest file": 400,
    "lines of the package": 27_000,
    "hops of one round": 50,
    "files of one round": 22,
}


def modules(root: Path = ROOT) -> dict[str, Path]:
    """The package's modules by name."""
    found = {}
    for file in sorted((root / PACKAGE).rglob("*.py")):
        parts = file.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def imports(file: Path, known: dict[str, Path], *, lazy: bool = True) -> set[str]:
    """The package's modules that a file imports."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    found: set[str] = set()
    for node in ast.walk(tree) if lazy else tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.add(whole if whole in known else str(node.module))
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith(PACKAGE)}
    return found - {PACKAGE}


def room(module: str) -> str:
    """The part of the house that a module is in."""
    return module.split(".")[1] if "." in module else module


def rooms_in_a_ring(known: dict[str, Path], *, lazy: bool) -> set[str]:
    """Rooms from which a way of imports leads back to themselves."""
    ways: dict[str, set[str]] = {}
    for name, file in known.items():
        if name != PACKAGE:
            others = {room(other) for other in imports(file, known, lazy=lazy)}
            ways.setdefault(room(name), set()).update(others - {room(name)})

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        todo = list(ways.get(start, ()))
        while todo:
            here = todo.pop()
            if here not in seen:
                seen.add(here)
                todo += ways.get(here, ())
        return seen

    return {name for name in ways if name in reached(name)}


def way_of_one_round() -> tuple[int, int]:
    """(hops from file to file, files) of the second round of a tiny run in style user.

    Each hop is counted once: a call from one file of the package into another.
    """
    from dp_fedmed.cli import main
    from dp_fedmed.federation.strategy import DPStrategy

    hops: set[tuple[str, str]] = set()
    package, configure = str(ROOT / PACKAGE), DPStrategy.configure_train

    def trace(frame: FrameType, event: str, _: object) -> None:
        if event != "call" or not frame.f_code.co_filename.startswith(package):
            return
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(package):
            caller = caller.f_back
        if caller is not None and caller.f_code.co_filename != frame.f_code.co_filename:
            hops.add((caller.f_code.co_filename, frame.f_code.co_filename))

    def traced(strategy: Any, server_round: int, *rest: Any) -> Any:
        sys.setprofile(trace if server_round == 2 else None)
        return configure(strategy, server_round, *rest)

    DPStrategy.configure_train = traced  # type: ignore[method-assign]
    words = ["privacy=user", "federation.num_rounds=3", "engine.workers=1"]
    try:
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            main(["run", *words, "federation.num_clients=20", f"run_dir={folder}/run"])
    finally:
        sys.setprofile(None)
        DPStrategy.configure_train = configure  # type: ignore[method-assign]
    return len(hops), len({file for hop in hops for file in hop})


def measured() -> Iterator[tuple[str, int, str]]:
    """Each figure, with what it is largest for."""
    known = modules()
    for name, lazy in (
        ("rooms in a ring, lazy imports left out", False),
        ("rooms in a ring", True),
    ):
        ring = rooms_in_a_ring(known, lazy=lazy)
        yield name, len(ring), ", ".join(sorted(ring))
    fans = {name: len(imports(file, known)) for name, file in known.items()}
    widest = max(fans, key=lambda name: fans[name])
    yield "largest fan-out of a file", fans[widest], widest
    lines = {name: len(file.read_text().splitlines()) for name, file in known.items()}
    longest = max(lines, key=lambda name: lines[name])
    yield "lines of the longest file", lines[longest], longest
    yield "lines of the package", sum(lines.values()), f"{len(lines)} files"
    hops, files = way_of_one_round()
    yield "hops of one round", hops, "a call from one file into another, each pair once"
    yield "files of one round", files, ""


def main() -> int:
    """Print the table."""
    missed = 0
    for name, value, note in measured():
        target = TARGETS[name]
        missed += value > target
        print(f"{name:40} {value:>7,} {'≤' if value <= target else '>'} {target:>7,}  {note}")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
