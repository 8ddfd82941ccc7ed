"""What a sweep shows: a bar and a line per running job on a terminal, plain lines elsewhere."""

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

from dp_fedmed.config import better
from dp_fedmed.reporting.words import rounded_up, say
from dp_fedmed.sweeps.directory import SweepJob
from dp_fedmed.sweeps.facts import SweepFacts, facts_of
from dp_fedmed.sweeps.results import COMPLETED, CSV_FILE
from dp_fedmed.sweeps.summary import NOT_PRIVATE, TUNING, TaskSummary, spending, summarize


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
        """Shown while the libraries are loaded."""
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

    def progress(self, job: SweepJob, message: Mapping[str, Any]) -> None:
        """A job has made progress."""
        line = self._lines[job.number]
        if "rounds" in message:
            self._progress.update(line, total=message["rounds"])
        if "round" in message:
            status = str(job)
            if message["value"] is not None:
                status += f"  val {message['value']:.3f}"
            status += "".join(f" ε_{level} {e:.2f}" for level, e in message["epsilon"].items())
            self._progress.update(line, completed=message["round"], status=escape(status))
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
        """How to resume."""
        done = f"{self.done} of {self.total} jobs are done"
        self._print(f"{done}. Resume with: dp-fedmed resume {shlex.quote(str(self.path))}")

    def summary(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Tables, what was spent, what failed, and where everything is."""
        facts = facts_of(self.path, rows)
        for task in summarize(facts).tasks:
            self._print_settings(facts, task)
            self._print_costs(task)
        for line in spending_lines(facts):
            self._print(line)
        incomplete = [row for row in rows if row["status"] != COMPLETED]
        for row in incomplete:
            self._print(f"job {row['job']:03d} {row['status']}: {row['message']}", "red")
        place = shlex.quote(str(self.path))
        if incomplete:
            self._print(f"Try them again: dp-fedmed resume {place}")
        self._print(f"Results: {self.path / CSV_FILE}")
        if len(incomplete) < len(rows):
            self._print(f"A page of them: dp-fedmed report {place}")

    def _print_settings(self, facts: SweepFacts, task: TaskSummary) -> None:
        keys = dict.fromkeys(key for job in facts.done for key in job.overrides if key != "seed")
        table = Table(*keys, title=f"{task.task}, mean ± sd over seeds", title_style="bold")
        for name in ("runs", f"test {task.metric}", *(f"ε_{level}" for level in task.levels)):
            table.add_column(name, justify="right")
        for setting in task.settings:
            table.add_row(
                *(setting.first.overrides.get(key, "") for key in keys),
                str(setting.test.count),
                str(setting.test),
                *(setting.shown_epsilon(level) for level in task.levels),
            )
        self.console.print(table)

    def _print_costs(self, task: TaskSummary) -> None:
        if task.costs:
            table = Table("step", title="what it costs, by seed, mean ± sd", title_style="bold")
            table.add_column(f"lost {task.metric}", justify="right")
            for cost in task.costs:
                table.add_row(cost.what, str(cost.lost))
            self.console.print(table)

    def _best(self) -> str:
        jobs = [job for job in facts_of(self.path, self.rows).done if job.metric in job.val]
        if not jobs:
            return ""
        top = max(jobs, key=lambda job: better(job.metric) * job.val[job.metric])
        best = f"best val {top.metric} {top.val[top.metric]:.3f}"
        return escape(f"{best}: {top.shown_overrides}")

    def _print(self, text: str, style: str | None = None) -> None:
        say(self.console, text, style)


def describe_row(row: Mapping[str, Any], values: str) -> str:
    """One line on a job that has ended."""
    parts = [f"job {row['job']:03d}", *([values] if values else [])]
    if row["status"] != COMPLETED:
        parts.append(f"{row['status']}: {row['message']}")
    value = row["test"].get(row["metric"])
    if value is not None:
        parts.append(f"test {row['metric']} {value:.4f}")
    if row["epsilon"] and not row["noise_is_private"]:
        parts.append("not private: its noise seed is public")
    else:
        parts += [f"ε_{level} {rounded_up(spent)}" for level, spent in row["epsilon"].items()]
    return " · ".join([*parts, f"{row['seconds']:.1f} s"])


def spending_lines(facts: SweepFacts) -> list[str]:
    """What the runs of a sweep spend together, in words."""
    summary = summarize(facts)
    lines = spending(summary)
    if summary.has_public_noise:
        lines.append(NOT_PRIVATE)
    if lines and len(facts.done) > 1:
        lines.append(f"{TUNING} data_ledger= keeps count of all runs on the same data.")
    return lines
