"""A run's ledger on the console."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from dp_fedmed.errors import EXIT_FINDING, EXIT_STOPPED
from dp_fedmed.privacy.accounting.events import Level
from dp_fedmed.reporting.words import capitalized, say
from dp_fedmed.run.verify import LedgerView

WORST_CASE = (
    "ε_sample is the planned worst case, of a client in every round that it may be in: with hidden "
    "cohorts the realised one would tell who took part."
)


def print_ledger(run_dir: Path, console: Console) -> None:
    """Every record as a line of a table."""
    view = LedgerView(run_dir)
    levels = list(view.shown_epsilons())
    table = Table(title=f"{view.ledger.path}", title_justify="left")
    table.add_column("#", justify="right")
    table.add_column("record")
    table.add_column("phase", justify="right")
    table.add_column("round", justify="right")
    table.add_column("what", overflow="fold")
    for level in levels:
        table.add_column(f"ε_{level}", justify="right")
    for line in view.lines():
        body = line.record.body
        spent: dict[str, float | None] = {
            Level.sample: line.sample_epsilon,
            Level.user: line.user_epsilon,
        }
        table.add_row(
            str(line.record.number),
            line.record.kind,
            str(body.get("phase", "")),
            str(body.get("round", "")),
            line.what,
            *("" if (e := spent[level]) is None else f"{e:.4f}" for level in levels),
        )
    console.print(table)
    if view.hidden and Level.sample in levels:
        console.print(WORST_CASE)
    if view.ledger.torn:
        console.print(f"A last line of {view.ledger.torn} bytes was never written to its end.")


def print_verification(run_dir: Path, console: Console) -> int:
    """Check a run directory against its ledger; an exit code: 0 if everything agrees."""
    view = LedgerView(run_dir)
    problems = [text for text in view.problems() if text != view.open_words]
    count = len(view.ledger.records)
    say(console, f"{view.ledger.path}: {count} records, each chained to the one before.")
    for level, spent in view.shown_epsilons().items():
        say(console, f"ε_{level} = {spent:.6g}, recomputed from the ledger alone")
        if view.hidden and level == Level.sample:
            console.print(WORST_CASE)
    for problem in problems:
        say(console, problem, "red")
    if problems:
        return EXIT_STOPPED
    if view.open_round is not None:
        say(console, capitalized(view.open_words))
        return EXIT_FINDING
    console.print("Checkpoints, settings, report and clients' ledgers agree with it.")
    return 0
