"""What a benchmark returns, and the table that shows it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from rich.table import Table


@dataclass(frozen=True)
class Row:
    """One measured figure and the bound that it must keep; `at_least` turns the bound around."""

    name: str
    value: float
    target: float | None = None
    unit: str = ""
    at_least: bool = False

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None when there is none."""
        if self.target is None:
            return None
        return self.value >= self.target if self.at_least else self.value <= self.target


def table(rows: list[Row], title: str) -> Table:
    """Rows as a table."""
    shown = Table(title=title, title_justify="left")
    for heading in ("what", "measured", "target", ""):
        shown.add_column(heading, justify="left" if heading == "what" else "right")
    for row in rows:
        bound = "" if row.target is None else f"{'≥' if row.at_least else '≤'} {row.target:g}"
        mark = {True: "[green]met", False: "[red]missed", None: ""}[row.met]
        shown.add_row(row.name, f"{row.value:.4g} {row.unit}".strip(), bound, mark)
    return shown


def best_of(repeats: int, work: Callable[[], object]) -> float:
    """The shortest time of several, in seconds: the least disturbed one."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)
