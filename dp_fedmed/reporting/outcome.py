"""How a run ended, in two tables: its metrics, and what is promised to whom.

The promises are read from `privacy_report.json`, as the page and the privacy card read them, so
that the terminal cannot say anything else; an ε is rounded up.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from dp_fedmed.config import Config, better
from dp_fedmed.errors import ConfigError
from dp_fedmed.reporting import promises
from dp_fedmed.reporting.run_facts import RunFacts, is_run, read_run
from dp_fedmed.reporting.words import rounded_up

if TYPE_CHECKING:
    from dp_fedmed.run.results import RunResult

ODDS = "Right about whether the unit was in the training data, from 50:50 odds."


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
