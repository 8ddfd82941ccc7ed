"""What a sweep shows: a bar and a line a running job on a terminal, plain lines elsewhere."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from dp_fedmed.sweeps.directory import SweepJob
from dp_fedmed.sweeps.results import COMPLETED, FAILED
from dp_fedmed.sweeps.summary import best, by_setting, costs, spent_together, test_value

LEVEL_WORDS = {"sample": "record", "user": "client"}


class SweepDisplay:
    """Watches a sweep.

    Args:
        path: the sweep's directory.
        jobs: all of them.
        rows: of the jobs that are done already.
    """

    def __init__(
        self,
        path: Path,
        jobs: Sequence[SweepJob],
        rows: Sequence[Mapping[str, Any]],
        console: Console | None = None,
    ) -> None:
        self.path, self.console = path, console or Console()
        self.rows = list(rows)
        self.done = len(rows)
        self.total = len({job.number for job in jobs} | {row["job"] for row in rows})
        self._started: dict[int, float] = {}
        self._lines: dict[int, TaskID] = {}
        # Without a thread of its own: workers are forked while this is shown.
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[status]}"),
            console=self.console,
            auto_refresh=False,
            disable=not self.console.is_terminal,
        )
        self._overall = self._progress.add_task(
            "sweep", total=self.total, completed=self.done, status=self._best()
        )

    def loading(self) -> AbstractContextManager[object]:
        """While the libraries are loaded."""
        done = f"; {self.done} are done" if self.done else ""
        self._print(f"{self.total} jobs{done}: {self.path}")
        return self.console.status("loading PyTorch and Flower")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        for line in self._lines.values():
            self._progress.remove_task(line)
        self._progress.refresh()
        self._progress.stop()

    def started(self, job: SweepJob) -> None:
        """A job begins."""
        self._started[job.number] = time.perf_counter()
        self._lines[job.number] = self._progress.add_task(
            f"{job.number:03d}", total=None, status=escape(str(job))
        )
        self._progress.refresh()

    def progress(self, job: SweepJob, told: Mapping[str, Any]) -> None:
        """A job is so far."""
        line = self._lines[job.number]
        if "rounds" in told:
            self._progress.update(line, total=told["rounds"])
        if "round" in told:
            status = str(job)
            if told["value"] is not None:
                status += f"  val {told['value']:.3f}"
            status += "".join(f" ε_{level} {e:.2f}" for level, e in told["epsilon"].items())
            self._progress.update(line, completed=told["round"], status=escape(status))
        self._progress.refresh()

    def seconds_of(self, job: SweepJob) -> float:
        """How long a job has been running."""
        return time.perf_counter() - self._started[job.number]

    def ended(self, job: SweepJob, row: Mapping[str, Any] | None) -> None:
        """A job has come to its end, or was interrupted."""
        self._progress.remove_task(self._lines.pop(job.number))
        if row is not None:
            self.rows.append(row)
            self.done += 1
            self._print(f"{self.done}/{self.total}  {describe_row(row, str(job))}")
        self._progress.update(self._overall, completed=self.done, status=self._best())
        self._progress.refresh()

    def stopping(self) -> None:
        """Ctrl-C was pressed."""
        self._print("Stopping after the rounds that are being computed; Ctrl-C again ends at once")

    def interrupted(self) -> None:
        """How to go on."""
        done = f"{self.done} of {self.total} jobs are done"
        self._print(f"{done}. Go on with: dp-fedmed resume {shlex.quote(str(self.path))}")

    def summary(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Tables, what was spent, what failed, and where everything is."""
        self._print_settings(rows)
        lost = costs(rows)
        if lost:
            table = Table("cost of", "with", title="mean ± sd over seeds", title_style="bold")
            table.add_column(f"lost {rows[0]['metric']}", justify="right")
            for cost in lost:
                table.add_row(cost.of, cost.at, str(cost.lost))
            self.console.print(table)
        for line in spending_lines(rows):
            self._print(line)
        for row in rows:
            if row["status"] != COMPLETED:
                self._print(f"job {row['job']:03d} {row['status']}: {row['message']}", "red")
        if any(row["status"] != COMPLETED for row in rows):
            self._print(f"Try them again: dp-fedmed resume {shlex.quote(str(self.path))}")
        self._print(f"Results: {self.path / 'results.csv'}")
        if any(row["status"] == COMPLETED for row in rows):
            self._print(f"A page of them: dp-fedmed report {shlex.quote(str(self.path))}")

    def _print_settings(self, rows: Sequence[Mapping[str, Any]]) -> None:
        settings = by_setting(rows)
        if not settings:
            return
        keys = list(dict.fromkeys(key for setting in settings for key in setting.overrides))
        table = Table(*keys, title="mean ± sd over seeds", title_style="bold")
        table.add_column("runs", justify="right")
        metrics = list(dict.fromkeys(setting.metric for setting in settings))
        for metric in metrics:
            table.add_column(f"test {metric}", justify="right")
        levels = list(dict.fromkeys(level for setting in settings for level in setting.epsilon))
        for level in levels:
            table.add_column(f"ε_{level}", justify="right")
        for setting in settings:
            table.add_row(
                *(str(setting.overrides.get(key, "")) for key in keys),
                str(setting.test.runs),
                *(str(setting.test) if metric == setting.metric else "" for metric in metrics),
                *(
                    f"{setting.epsilon[level]:.3g}" if level in setting.epsilon else "–"
                    for level in levels
                ),
            )
        self.console.print(table)

    def _best(self) -> str:
        row = best(self.rows)
        if row is None:
            return ""
        values = " ".join(f"{key}={value}" for key, value in row["overrides"].items())
        return escape(f"best val {row['metric']} {row['val'][row['metric']]:.3f}: {values}")

    def _print(self, text: str, style: str | None = None) -> None:
        self.console.print(text, style=style, soft_wrap=True, highlight=False, markup=False)


def describe_row(row: Mapping[str, Any], values: str) -> str:
    """One line on a job that has ended."""
    parts = [f"job {row['job']:03d}", *([values] if values else [])]
    if row["status"] != COMPLETED:
        parts.append(f"{row['status']}: {row['message']}")
    value = test_value(row)
    if value is not None:
        parts.append(f"test {row['metric']} {value:.4f}")
    parts += [f"ε_{level} {spent:.3g}" for level, spent in row["epsilon"].items()]
    return " · ".join([*parts, f"{row['seconds']:.1f} s"])


def spending_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the runs of a sweep spend together, in words."""
    lines = []
    rows = [row for row in rows if row["status"] != FAILED]  # one that stopped early spent as well
    for level, (epsilon, delta, runs) in spent_together(rows).items():
        if runs > 1:
            unit, others = LEVEL_WORDS[level], len(rows) - runs
            begin, end = f"These {runs} runs used the same data", ""
            if others:
                begin = f"{runs} of {len(rows)} runs on the same data protect a {unit}"
                end = f"; the other {others} promise a {unit} nothing"
            costs = f"costs a {unit} ε = {epsilon:.3g} at δ = {delta:.2g} (conservative sum)"
            lines.append(f"{begin}: to publish all of them {costs}{end}.")
    if lines:
        lines.append(
            "Choosing the best of them by its results is covered by no run's ε. "
            "data_ledger= keeps count of all runs on the same data."
        )
    return lines
