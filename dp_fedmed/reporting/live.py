"""The panel that a terminal shows while a run lasts."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.columns import Columns
from rich.console import Console, ConsoleOptions, RenderResult
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from dp_fedmed.config import Config, better
from dp_fedmed.privacy.accounting.events import Level
from dp_fedmed.reporting.words import ONE_UNIT, describe_sites

if TYPE_CHECKING:
    from dp_fedmed.federation.rounds import RoundRecord

#: (share of the target from which on, colour of the gauge).
COLOURS = ((0.9, "red"), (0.6, "yellow"), (0.0, "green"))
BAR_WIDTH = 28
RECENT = 10
MOST_METRICS = 8


class LivePanel:
    """Rounds, metrics and budgets of one run; drawn anew whenever rich asks.

    Shows a record of a round as it is given: who took part is in it only where that is public.
    """

    def __init__(self, config: Config) -> None:
        self.title = f"{config.task.name}, privacy {config.privacy.style}, {describe_sites(config)}"
        self.total, self.metric = config.federation.num_rounds, config.task.metric
        self.targets: dict[str, float | None] = {
            Level.sample: config.privacy.sample.target_epsilon,
            Level.user: config.privacy.user.target_epsilon,
        }
        self.planned: Mapping[str, float] = {}
        self.is_stopping = False
        self.is_over = False
        self.completed = 0
        self.cohort = ""
        self.epsilons: Mapping[str, float] = {}
        self.metrics: dict[str, float] = {}
        self.change: dict[str, float] = {}
        self.validated = 0
        self.work: dict[str, tuple[int, int]] = {}
        self._seconds: deque[float] = deque(maxlen=RECENT)
        self._started = self._round_started = time.monotonic()
        self._spinner = Spinner("dots")

    def begin(self, done: int, planned: Mapping[str, float]) -> None:
        """Training begins, or resumes after some rounds."""
        self.completed, self.planned = done, planned
        self._started = self._round_started = time.monotonic()

    def round(self, record: RoundRecord) -> None:
        """A round has ended."""
        if record.server_round > 0:
            self._seconds.append(time.monotonic() - self._round_started)
        self._round_started = time.monotonic()
        self.completed = record.server_round
        self.epsilons = record.epsilons
        if record.cohort:
            answered = len(record.cohort) - len(record.failed)
            self.cohort = f"{answered} of {len(record.cohort)} clients answered"
        if record.train_loss is not None:
            self.cohort += f", train loss {record.train_loss:.4f}"
        new = dict(record.server_metrics)
        if new:
            self.change = {key: new[key] - self.metrics[key] for key in new if key in self.metrics}
            self.metrics, self.validated = new, record.server_round

    def within(self, what: str, done: int, total: int) -> None:
        """Progress of long work within a round, which is shown until it is done."""
        self.work[what] = (done, total)
        if done >= total:
            del self.work[what]

    def seconds_left(self) -> float | None:
        """Estimated from the last rounds; None before the first is over."""
        if not self._seconds:
            return None
        each = sum(self._seconds) / len(self._seconds)
        spent = time.monotonic() - self._round_started
        return max(0.0, each * (self.total - self.completed) - min(spent, each))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = Table.grid(padding=(0, 2))
        rows.add_column(style="dim", no_wrap=True)
        rows.add_column()
        rows.add_row("rounds", self._rounds())
        for what, (done, total) in list(self.work.items()):
            bar = ProgressBar(total=total, completed=done, width=BAR_WIDTH)
            row = Table.grid(padding=(0, 1))
            row.add_row(bar, f"{done} of {total}")
            rows.add_row(what, row)
        if self.cohort:
            rows.add_row("cohort", self.cohort)
        for level, spent in self.epsilons.items():
            rows.add_row(ONE_UNIT[level], self._gauge(level, spent))
        if self.metrics:
            rows.add_row("validation", self._metrics())
        rows.add_row("", self._status())
        yield Panel(rows, title=self.title, title_align="left", border_style="cyan", expand=False)

    def _rounds(self) -> Table:
        row = Table.grid(padding=(0, 1))
        left = self.seconds_left()
        times = f"{_clock(time.monotonic() - self._started)} gone"
        if left is not None and self.completed < self.total:
            times += f", {_clock(left)} left"
        bar = ProgressBar(total=self.total, completed=self.completed, width=BAR_WIDTH)
        row.add_row(bar, f"{self.completed} of {self.total}", Text(times, style="dim"))
        return row

    def _gauge(self, level: str, spent: float) -> Table:
        """ε against its target, coloured by the share that is spent."""
        row = Table.grid(padding=(0, 1))
        target, planned = self.targets[level], self.planned.get(level)
        top = target if target is not None else planned
        share = spent / top if top else 0.0
        colour = next(name for least, name in COLOURS if share >= least)
        said = f"ε {spent:.3f}" + (f" of {target:g} ({share:.0%})" if target is not None else "")
        end = "" if planned is None else f"{planned:.3f} at the end"
        bar = ProgressBar(
            total=1.0,
            completed=min(1.0, share),
            width=BAR_WIDTH,
            complete_style=colour,
            finished_style=colour,
        )
        row.add_row(bar, Text(said, style=colour), Text(end, style="dim"))
        return row

    def _metrics(self) -> Columns:
        """The last validation, the chosen metric first, each with its change."""
        shown = sorted(self.metrics, key=lambda name: (name != self.metric, "/" in name, name))
        cells = []
        for key in shown[:MOST_METRICS]:
            cell = Text(f"{key} {self.metrics[key]:.4f}", "bold" if key == self.metric else "")
            change = self.change.get(key)
            if change is not None:
                gain = change * better(key)
                colour = "dim" if gain == 0 else "green" if gain > 0 else "red"
                cell.append(f" {change:+.4f}".replace("-", "−"), colour)
            cells.append(cell)
        if self.validated != self.completed:
            cells.append(Text(f"of round {self.validated}", "dim"))
        return Columns(cells, padding=(0, 2))

    def _status(self) -> Text | Table:
        if self.is_over:
            return Text("training is over", style="dim")
        row = Table.grid(padding=(0, 1))
        number = min(self.completed + 1, self.total)
        if self.is_stopping:
            said = Text(f"stopping after round {number}; Ctrl-C again stops at once", "bold yellow")
        else:
            said = Text(f"round {number} is under way; Ctrl-C stops after it", "dim")
        row.add_row(self._spinner, said)
        return row


def _clock(seconds: float) -> str:
    """Seconds as minutes and hours.

    >>> _clock(75.2), _clock(3725)
    ('1:15', '1:02:05')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
