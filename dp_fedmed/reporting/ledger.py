"""A run's ledger on the console."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from dp_fedmed.federation.ledger_check import LedgerView


def print_ledger(run_dir: Path, console: Console) -> None:
    """Every record as a line of a table."""
    view = LedgerView(run_dir)
    table = Table(title=f"{view.ledger.path}", title_justify="left")
    for heading, justify in (("#", "right"), ("record", "left"), ("phase", "right")):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    table.add_column("round", justify="right")
    table.add_column("what", overflow="fold")
    shown = view.epsilons()
    levels = [level for level in ("sample", "user") if level in shown]
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
    if view.hidden and "sample" in shown:
        console.print(
            "ε_sample is not shown by round: with hidden cohorts it would tell who took part; see "
            "privacy_report.json for the planned worst case."
        )
    if view.ledger.torn:
        console.print(f"A last line of {view.ledger.torn} bytes was never written to its end.")


def print_verification(run_dir: Path, console: Console) -> bool:
    """Check a run directory against its ledger; True if everything agrees."""
    view = LedgerView(run_dir)
    problems = list(view.problems())
    console.print(
        f"{view.ledger.path}: {len(view.ledger.records)} records, each chained to the one before.",
        soft_wrap=True,
        highlight=False,
    )
    for level, spent in view.epsilons().items():
        if view.hidden and level == "sample":
            continue
        console.print(f"ε_{level} = {spent:.6g}, recomputed from the ledger alone", highlight=False)
    for problem in problems:
        console.print(f"[red]{problem}", soft_wrap=True, highlight=False)
    if not problems:
        console.print("Checkpoints, settings, report and clients' ledgers agree with it.")
    return not problems


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
