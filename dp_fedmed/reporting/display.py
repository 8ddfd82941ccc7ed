"""What a run shows: a live panel on a terminal, log lines elsewhere, two tables at the end.

The promises are read from `privacy_report.json`, as the page and the privacy card read them, so
that the terminal cannot say anything else; an ε is rounded up.
"""

from __future__ import annotations

import contextlib
import logging
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

from dp_fedmed.config import Config, PrivacyStyle, better
from dp_fedmed.errors import ConfigError
from dp_fedmed.progress import listened_by
from dp_fedmed.reporting import promises
from dp_fedmed.reporting.live import LivePanel
from dp_fedmed.reporting.run_facts import RunFacts, is_run, numbers, read_evaluation, read_run
from dp_fedmed.reporting.run_pictures import RunPictures
from dp_fedmed.reporting.words import describe_sites, rounded_up, say

if TYPE_CHECKING:
    from dp_fedmed.federation.rounds import RoundRecord
    from dp_fedmed.run.results import RunResult

logger = logging.getLogger(__name__)

STOPPING = "stopping after this round; Ctrl-C again stops at once"
ODDS = "Right about whether the unit was in the training data, from 50:50 odds."


class LogDisplay(RunPictures):
    """One log line per round: for Flower's log stream, files and tests."""

    def begin(self, done: int, planned: Mapping[str, float]) -> None:
        """Log what is planned."""
        for level, epsilon in planned.items():
            logger.info("ε_%s will be at most %.3f at the end", level, epsilon)

    def stopping(self) -> None:
        """Log it."""
        logger.info("%s", STOPPING)

    def round(self, record: RoundRecord) -> None:
        """Log the round."""
        logger.info("%s", describe_round(record))

    def summary(self, config: Config, result: RunResult) -> None:
        """Log how the run ended."""
        logger.info("%s; test %s", result.stopped, describe(result.test))
        if (missing := _missing(result)) is not None:
            logger.warning("%s", missing)
        logger.info("Results: %s", result.run_dir)


class ConsoleDisplay(RunPictures):
    """A live panel on a terminal, a line per round elsewhere; two tables at the end.

    Args:
        config: of the run.
        console: where to; stdout unless given.
        beside: an ended run of the same task, whose test metrics are shown beside this one's.
    """

    def __init__(
        self, config: Config, console: Console | None = None, beside: RunFacts | None = None
    ) -> None:
        self.console = console or Console()
        self.total, self._beside = config.federation.num_rounds, beside
        self._panel = LivePanel(config)
        self._done_before = 0  # rounds of earlier parts of the run
        self._live: Live | None = None
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live = Live(self._panel, console=self.console, refresh_per_second=5)
            self._live.start()
            self._open.enter_context(listened_by(self._panel.within))
        return self

    def __exit__(self, *exception: object) -> None:
        self._open.close()
        self._panel.is_over = True
        if self._live is not None:
            self._live.stop()
            self._live = None

    def note(self, text: str) -> None:
        """Print it."""
        say(self.console, text, "yellow")

    def begin(self, done: int, planned: Mapping[str, float]) -> None:
        """Show it beside the gauges."""
        self._done_before = done
        self._panel.begin(done, planned)

    def stopping(self) -> None:
        """Say so in the panel, or in a line."""
        self._panel.is_stopping = True
        if (live := self._live) is not None:
            live.refresh()  # the round may be over before the panel's next turn
        else:
            say(self.console, STOPPING)

    def round(self, record: RoundRecord) -> None:
        """Bring the panel up to date, or print the round."""
        self._panel.round(record)
        if self._live is None:
            say(self.console, describe_round(record))
        for name, reason in record.failed.items():
            text = f"round {record.server_round}: {name} contributed nothing: {reason}"
            say(self.console, text, "yellow")

    def summary(self, config: Config, result: RunResult) -> None:
        """Print the metrics, what is promised to whom, and where all of it is."""
        table = metrics_table(config, result, self._beside)
        self.console.print(table)
        for line in in_units(result.run_dir):
            say(self.console, line, wrap=True)
        part = ", this part of the run" if self._done_before else ""
        text = (
            f"{describe_sites(config)}, {result.rounds} of {self.total} rounds{part} in "
            f"{result.seconds:.1f} s; {_choice(config, result)}."
        )
        say(self.console, text, wrap=True)
        if (missing := _missing(result)) is not None:
            say(self.console, missing, "yellow")
        if (promised := promise_table(result.run_dir)) is not None:
            self.console.print(promised)
        if result.stopped != "completed":
            say(self.console, f"Stopped early: {result.stopped}", "red", wrap=True)
            if not result.stopped.startswith("budget") and "dp-fedmed resume" not in result.stopped:
                say(self.console, f"Resume with: dp-fedmed resume {result.run_dir}")
        say(self.console, f"Results: {result.run_dir}")
        place = shlex.quote(str(result.run_dir))
        say(self.console, f"A page of them: dp-fedmed report {place}")


def in_units(run_dir: Path) -> list[str]:
    """A regression's test figures in each target's own unit; nothing for other runs."""
    lines = []
    for target in (read_evaluation(run_dir, []) or {}).get("targets", []):
        found = numbers(target.get("metrics"))
        shown = [f"{key} {found[key]:.4g}" for key in ("rmse", "mae") if key in found]
        unit = f" {target['unit']}" if target.get("unit") else ""
        if shown:
            lines.append(f"In the unit of {target.get('name')}: test {', '.join(shown)}{unit}.")
    return lines


def _missing(result: RunResult) -> str | None:
    """Who contributed less than asked, where that may be published."""
    return None if result.participation is None else result.participation.in_words()


def _choice(config: Config, result: RunResult) -> str:
    chosen = config.task.metric in result.val
    if config.federation.evaluate_every == 0 or (
        config.privacy.style is PrivacyStyle.none and not chosen
    ):
        return f"the model is the one of round {result.selected_round}"
    if config.privacy.style is PrivacyStyle.none:
        return (
            f"the model of round {result.selected_round} has the best validation "
            f"{config.task.metric}"
        )
    return "the model is the last round's, since choosing one would be a release"


def describe_round(record: RoundRecord) -> str:
    """One line on a round."""
    parts = [f"round {record.server_round}"]
    if record.cohort:
        parts.append(f"{len(record.cohort) - len(record.failed)}/{len(record.cohort)} clients")
    if record.train_loss is not None:
        parts.append(f"train loss {record.train_loss:.4f}")
    if record.server_metrics:
        parts.append(f"val {describe(record.server_metrics)}")
    parts += [f"ε_{level} {spent:.3f}" for level, spent in record.epsilons.items()]
    return " · ".join(parts)


def describe(metrics: Mapping[str, float]) -> str:
    """Metrics on one line.

    >>> describe({"loss": 0.5, "accuracy": 0.91})
    'accuracy 0.9100, loss 0.5000'
    """
    return ", ".join(f"{key} {metrics[key]:.4f}" for key in sorted(metrics))


def other_run(path: Path, config: Config) -> RunFacts:
    """The finished run whose test metrics are to stand beside those of this one.

    Raises:
        ConfigError: if there is no such run, or it was judged by another task.
    """
    facts = read_run(path, ledger=False) if is_run(path) else None
    if facts is None or not facts.test:
        raise ConfigError(
            f"--beside {path} is not a run that has ended: give the directory of one, for example "
            "what dp-fedmed run privacy=none has printed"
        )
    if facts.setting("task.name") != config.task.name:
        raise ConfigError(
            f"--beside {path} is a run of task={facts.setting('task.name')}: give one of "
            f"task={config.task.name}"
        )
    return facts


def metrics_table(config: Config, result: RunResult, beside: RunFacts | None = None) -> Table:
    """The metrics that the run ended with; the one that judges it comes first."""
    table = Table(title=f"{config.task.name}, privacy {config.privacy.style}", title_style="bold")
    table.add_column("metric")
    table.add_column("validation", justify="right")
    table.add_column("test", justify="right")
    if beside is not None:
        table.add_column(f"test {_privacy_of(beside)}", justify="right")
    if result.clients:
        table.add_column("clients (worst … best)", justify="right")
    metric = config.task.metric
    for key in sorted({*result.val, *result.test}, key=lambda key: (key != metric, key)):
        row = [key, _number(result.val, key), _number(result.test, key)]
        if beside is not None:
            row.append(_number(beside.test, key))
        if result.clients:
            values = sorted(held[key] for held in result.clients.values() if key in held)
            values = values[:: int(better(key))]
            row.append(f"{values[0]:.4f} … {values[-1]:.4f}" if values else "–")
        table.add_row(*row, style="bold" if key == metric else "")
    return table


def promise_table(run_dir: Path) -> Table | None:
    """ε by observer and unit; None for a run without privacy."""
    facts = read_run(run_dir, ledger=False)
    if not facts.guarantees:
        return None
    said = ODDS
    if (group := promises.group_promise(facts)) is not None:
        said += f"\nFor {group[0]}: {group[1]}."
    table = Table(
        *("who looks", "unit", "promise", "right at most"),
        title="what is promised to whom",
        title_style="bold",
        caption=said,
        caption_justify="left",
    )
    for row in promises.observer_rows(facts):
        for unit, promise in row["promises"].items():
            table.add_row(row["observer"], unit, promise.bound or promise.reason, promise.odds)
    return table


def _privacy_of(facts: RunFacts) -> str:
    if facts.style == "none":
        return "without privacy"
    spent = ", ".join(rounded_up(held["epsilon"]) for held in facts.guarantees.values())
    return f"with {facts.style}, ε = {spent}" if facts.is_private else f"with {facts.style}"


def _number(metrics: Mapping[str, float], key: str) -> str:
    return f"{metrics[key]:.4f}" if key in metrics else "–"
