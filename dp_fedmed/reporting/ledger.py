"""A run's ledger on the console."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from dp_fedmed.errors import EXIT_FINDING, EXIT_STOPPED
from dp_fedmed.reporting.words import capitalized
from dp_fedmed.run.verify import LedgerView

WORST_CASE = (
    "ε_sample is the planned worst case, of a client in every round that it may be in: with hidden "
    "cohorts the realised one would tell who took part."
)


def print_ledger(run_dir: Path, console: Console) -> None:
    """Every record as a line of a table."""
    view = LedgerView(run_dir)
    table = Table(title=f"{view.ledger.path}", title_justify="left")
    for heading, justify in (("#", "right"), ("record", "left"), ("phase", "right")):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    table.add_column("round", justify="right")
    table.add_column("what", overflow="fold")
    levels = list(view.shown_epsilons())
    for level in levels:
        table.add_column(f"ε_{level}", justify="right")
    for line in view.lines():
        body = line.record.body
        spent = {"sample": line.sample_epsilon, "user": line.user_epsilon}
        table.add_row(
            str(line.record.number),
            line.record.kind,
            str(body.get("phase", "")),
            str(body.get("round", "")),
            line.what,
            *(_number(spent[level]) for level in levels),
        )
    console.print(table)
    if view.hidden and "sample" in levels:
        console.print(WORST_CASE)
    if view.ledger.torn:
        console.print(f"A last line of {view.ledger.torn} bytes was never written to its end.")


def print_verification(run_dir: Path, console: Console) -> int:
    """Check a run directory against its ledger; an exit code: 0 if everything agrees."""
    view = LedgerView(run_dir)
    problems = [text for text in view.problems() if text != view.open_words]
    console.print(
        f"{view.ledger.path}: {len(view.ledger.records)} records, each chained to the one before.",
        soft_wrap=True,
        highlight=False,
    )
    for level, spent in view.shown_epsilons().items():
        console.print(f"ε_{level} = {spent:.6g}, recomputed from the ledger alone", highlight=False)
        if view.hidden and level == "sample":
            console.print(WORST_CASE)
    for problem in problems:
        console.print(f"[red]{problem}", soft_wrap=True, highlight=False)
    if problems:
        return EXIT_STOPPED
    if view.open_round is not None:
        console.print(capitalized(view.open_words), soft_wrap=True, highlight=False)
        return EXIT_FINDING
    console.print("Checkpoints, settings, report and clients' ledgers agree with it.")
    return 0


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
