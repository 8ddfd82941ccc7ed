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

from dp_fedmed.reporting.display import LogDisplay
from dp_fedmed.reporting.plots import BLUE, GREEN, GREY, ORANGE

if TYPE_CHECKING:
    from dp_fedmed.evidence.audit import Audit, UnitAudit
    from dp_fedmed.federation.strategy import RoundRecord


class AuditProgress:
    """A bar for each audited run, by its rounds."""

    def __init__(self, console: Console) -> None:
        self.bars = Progress(
            TextColumn("[bold]auditing {task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("rounds"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )

    def watch(self, what: str, rounds: int) -> LogDisplay:
        """What a run shows its rounds to."""
        return _RoundsBar(self.bars, self.bars.add_task(what, total=rounds))


class _RoundsBar(LogDisplay):
    def __init__(self, bars: Progress, task: Any) -> None:
        self.bars, self.task = bars, task

    def round(self, record: RoundRecord) -> None:
        """Advance."""
        self.bars.update(self.task, completed=record.server_round)


def audit_table(audit: Audit) -> Table:
    """The claim and the bound of each unit, side by side."""
    title = f"audit of {audit.config.task.name}, privacy {audit.config.privacy.style}"
    table = Table(title=title, title_style="bold")
    table.add_column("unit")
    sure = f"shown, {audit.options.confidence:.0%}"
    for column in ("claimed ε", sure, "at most", "right", "canaries"):
        table.add_column(column, justify="right")
    table.add_column("verdict", no_wrap=True)
    for unit in audit.units:
        made = audit.options.repeat * unit.guesses.total
        table.add_row(
            unit.target.unit,
            "none" if unit.claim is None else f"{unit.claim:.3f}",
            "∞" if unit.lower_bound is None else f"> {unit.lower_bound:.3f}",
            "∞" if unit.largest_bound is None else f"> {unit.largest_bound:.3f}",
            f"{unit.correct} of {made}",
            f"{unit.canaries}",
            f"[bold red]{unit.verdict}" if unit.verdict.is_finding else str(unit.verdict),
        )
    return table


def plot_audit(audit: Audit, path: Path) -> None:
    """For each unit, the scores of canaries that were in and out, and ε claimed and shown."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = len(audit.units)
    figure = Figure(figsize=(9.5, 3.4 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, 2, squeeze=False, width_ratios=(2, 1.4))
    for (scores, bounds), unit in zip(panels, audit.units, strict=True):
        _scores(scores, unit)
        _bounds(bounds, unit, audit.options.confidence)
        for axes in (scores, bounds):
            axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(
        f"{audit.config.task.name}, privacy {audit.config.privacy.style}: {audit.decisive.verdict}",
        fontsize=11,
    )
    figure.savefig(path, dpi=140)


def _scores(axes: Any, unit: UnitAudit) -> None:
    low, high = (float(end) for end in np.quantile(unit.scores, [0.001, 0.999]))
    bins = np.linspace(low, high, 60) if low < high else 10
    for chosen, label, colour in (
        (~unit.coins, "canary was out", GREY),
        (unit.coins, "canary was in", BLUE),
    ):
        axes.hist(unit.scores[chosen], bins=bins, color=colour, alpha=0.55, label=label)
    ordered = np.sort(unit.scores)
    marks = [(unit.guesses.included, ordered[-max(1, unit.guesses.included)])]
    marks.append((unit.guesses.excluded, ordered[max(1, unit.guesses.excluded) - 1]))
    for count, at in marks:
        if count:
            axes.axvline(at, color=ORANGE, ls="--", lw=1.2)
    axes.plot([], [], color=ORANGE, ls="--", lw=1.2, label="guessed beyond, abstained between")
    axes.set_xlabel(f"score of a canary {unit.target.unit}")
    axes.set_ylabel("canaries")
    axes.set_ylim(top=1.4 * axes.get_ylim()[1])  # room for the legend
    axes.locator_params(axis="x", nbins=5)
    axes.legend(frameon=False, fontsize=8, loc="upper left")


def _bounds(axes: Any, unit: UnitAudit, confidence: float) -> None:
    bars = [
        ("claimed", unit.claim, GREEN),
        (f"shown, {confidence:.0%}", unit.lower_bound, ORANGE if unit.verdict.is_finding else BLUE),
        ("most it could show", unit.largest_bound, GREY),
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
