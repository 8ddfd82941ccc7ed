"""What an audit found: a table, a picture, and the bar while it runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from dp_fedmed.evidence.audit import Watcher
from dp_fedmed.reporting import drawing

if TYPE_CHECKING:
    from dp_fedmed.evidence.audit import Audit, Finding
    from dp_fedmed.federation.rounds import RoundRecord


class AuditProgress:
    """A bar for each part of an audit, by its releases or rounds."""

    def __init__(self, console: Console) -> None:
        self.bars = Progress(
            TextColumn("[bold]auditing {task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("{task.fields[of]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )

    def watch(self, what: str, total: int, of: str) -> Watcher:
        """What shows the rounds of a run, or releases."""
        return _Bar(self.bars, self.bars.add_task(what, total=total, of=of))


class _Bar(Watcher):
    def __init__(self, bars: Progress, task: Any) -> None:
        self.bars, self.task = bars, task

    def advance(self) -> None:
        """Advance."""
        self.bars.advance(self.task)

    def round(self, record: RoundRecord) -> None:
        """Advance."""
        self.bars.update(self.task, completed=record.server_round)


def audit_table(audit: Audit) -> Table:
    """The claim and the bound of each attack, side by side."""
    title = f"audit of {audit.config.task.name}, privacy {audit.config.privacy.style}"
    table = Table(title=title, title_style="bold")
    table.add_column("unit")
    table.add_column("attacked", no_wrap=True)
    sure = f"shown, {audit.options.confidence:.0%}"
    for column in ("claimed ε", sure, "at most", "right"):
        table.add_column(column, justify="right")
    table.add_column("verdict", no_wrap=True)
    for found in audit.findings:
        table.add_row(
            found.target.unit,
            str(found.attack),
            "none" if found.claim is None else f"{found.claim:.3f}",
            "∞" if found.lower_bound is None else f"> {found.lower_bound:.3f}",
            "∞" if found.largest_bound is None else f"> {found.largest_bound:.3f}",
            f"{found.correct} of {found.guesses}",
            f"[bold red]{found.verdict}" if found.verdict.is_finding else str(found.verdict),
        )
    return table


def plot_audit(audit: Audit, path: Path) -> None:
    """For each attack, the scores of canaries that were in and out, and ε claimed and shown."""
    rows = len(audit.findings)
    named = f"{audit.config.task.name}, privacy {audit.config.privacy.style}"
    figure = drawing.new_figure(9.5, 3.4 * rows, f"{named}: {audit.decisive.verdict}")
    panels = figure.subplots(rows, 2, squeeze=False, width_ratios=(2, 1.4))
    for (scores, bounds), found in zip(panels, audit.findings, strict=True):
        _scores(scores, found)
        _bounds(bounds, found, audit.options.confidence)
        drawing.tidy(scores)
        drawing.tidy(bounds)
    drawing.save_png(figure, path)


def _scores(axes: Any, found: Finding) -> None:
    axes.set_xlabel(f"score of a canary {found.target.unit}, {found.attack}")
    if not len(found.scores):
        return
    low, high = (float(end) for end in np.quantile(found.scores, [0.001, 0.999]))
    bins = np.linspace(low, high, 60) if low < high else 10
    for chosen, label, colour in (
        (~found.coins, "canary was out", drawing.GREY),
        (found.coins, "canary was in", drawing.BLUE),
    ):
        axes.hist(found.scores[chosen], bins=bins, color=colour, alpha=0.55, label=label)
    for mark in found.marks:
        axes.axvline(mark, color=drawing.ORANGE, ls="--", lw=1.2)
    axes.plot([], [], color=drawing.ORANGE, ls="--", lw=1.2, label="guessed beyond")
    axes.set_ylabel("canaries")
    axes.set_ylim(top=1.4 * axes.get_ylim()[1])  # room for the legend
    axes.locator_params(axis="x", nbins=5)
    drawing.small_legend(axes, loc="upper left")


def _bounds(axes: Any, unit: Finding, confidence: float) -> None:
    bars = [
        ("claimed", unit.claim, drawing.GREEN),
        (
            f"shown, {confidence:.0%}",
            unit.lower_bound,
            drawing.ORANGE if unit.verdict.is_finding else drawing.BLUE,
        ),
        ("most it could show", unit.largest_bound, drawing.GREY),
    ]
    top = max([value for _, value, _ in bars if value is not None], default=1.0) or 1.0
    for place, (_, value, colour) in enumerate(bars):
        shown = top if value is None else value
        text = f"{value:.2f}" if value is not None else ("none" if place == 0 else "unbounded")
        axes.barh(place, shown if value is not None or place else 0.0, color=colour, height=0.6)
        axes.text(
            shown + 0.02 * top if value is not None or place else 0.0, place, text, va="center"
        )
    axes.set_yticks(range(len(bars)), [label for label, _, _ in bars])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.25 * top)
    axes.set_xlabel("ε")
