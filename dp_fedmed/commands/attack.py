"""`dp-fedmed attack`: can the model of a finished run tell whom it was trained on?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dp_fedmed.commands.arguments import Arguments, existing_directory
from dp_fedmed.errors import EXIT_FINDING, ConfigError

if TYPE_CHECKING:
    from rich.console import Console

HELP = """\
dp-fedmed attack RUN_DIR [data.path=/new/place]: membership inference on a finished run.

  dp-fedmed run task=digits privacy=sample run_dir=$PWD/checkpoints/private
  dp-fedmed attack checkpoints/private

Training records of the clients against the server's held-out records: the attack says "member"
where the loss is low for the record's class (for anomaly detectors: where patches lie close to the
memory bank, or score as normal). It writes attack.json and attack.png into the run directory: ROC,
AUC, true positives at 0.1 % and 1 % false positives with intervals, and the most that the run's
(ε, δ) allows, on one picture.

It works on simulated runs, whose data are here; it refuses data that are not the run's. Data that
were moved are found with data.path=/new/place. It reads private training records, and its figures
are not covered by the guarantee: for the operator.

Exit code 3 if the attack surely reaches more than the guarantee allows (95 %, corrected).
"""


def main(arguments: list[str]) -> int:
    """Attack the run directory that is named."""
    given = Arguments(HELP, directory="RUN_DIR").read(arguments)
    rest = given.overrides
    if any(not word.startswith("data.path=") for word in rest) or len(rest) > 1:
        raise ConfigError(
            f"dp-fedmed attack takes a run directory and at most data.path=/new/place, not "
            f"{' '.join(rest)}: the settings are those of the run"
        )
    moved = rest[0].removeprefix("data.path=").strip("'\"") if rest else None
    from rich.console import Console

    return _attack(existing_directory(given.directory), moved, Console())


def _attack(path: Path, moved: str | None, console: Console) -> int:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    with console.status("loading PyTorch, the run and its data"):
        from dp_fedmed.evidence.attack_report import (
            ATTACK_FILE,
            ATTACK_PICTURE,
            attack_json,
            plot_attack,
        )
        from dp_fedmed.evidence.finished_run import FinishedRun
        from dp_fedmed.evidence.membership import attack_run
        from dp_fedmed.reporting.run_log import quiet_console
        from dp_fedmed.run.directory import RunDirectory
        from dp_fedmed.run.durable import RunLock

        quiet_console()
        run = FinishedRun.open(path, data_path=moved)
    lock = RunLock(path)
    try:
        bar = Progress(
            TextColumn("scoring records"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        with bar:
            total = sum(len(part) for part in run.data.parts().values())
            task = bar.add_task("", total=total)
            attack = attack_run(run, lambda count: bar.advance(task, count))
            bar.update(task, completed=total)
        report = attack_json(run, attack)
        RunDirectory(path).write_json(ATTACK_FILE, report)
        title = f"{run.config.task.name}, privacy {run.config.privacy.style}"
        plot_attack(attack, title, path / ATTACK_PICTURE)
    finally:
        lock.release()
    _show(report, console)
    console.print(f"Picture: {path / ATTACK_PICTURE}", soft_wrap=True, highlight=False)
    return EXIT_FINDING if report["exceeds_bound"] else 0


def _show(report: dict[str, Any], console: Console) -> None:
    from rich.table import Table

    table = Table(title=report["attack"], title_style="bold")
    table.add_column("")
    table.add_column("measured", justify="right")
    table.add_column("95 % interval", justify="right")
    table.add_column("allowed by (ε, δ)", justify="right")
    bound = report["bound"]
    rows = [("AUC", report["auc"], report["auc_interval"], None)]
    for fpr, tpr in report["tpr_at_fpr"].items():
        allowed = None if bound["tpr_at_fpr"] is None else bound["tpr_at_fpr"][fpr]
        name = f"TPR at {float(fpr):.1%} FPR"
        if fpr in report["too_few_non_members_for"]:
            name += " (too few)"
        rows.append((name, tpr, report["tpr_interval_at_fpr"][fpr], allowed))
    rows.append(
        ("advantage", report["advantage"], report["advantage_interval"], bound["advantage"])
    )
    for name, value, (low, high), allowed in rows:
        shown = "–" if allowed is None else f"{allowed:.4f}"
        table.add_row(name, f"{value:.4f}", f"{low:.4f} … {high:.4f}", shown)
    console.print(table)
    for text in (*report["notes"], report["statement"]):
        style = "red" if report["exceeds_bound"] and text is report["statement"] else None
        console.print(text, style=style, highlight=False, markup=False)
    console.print(report["outside_the_guarantee"], style="yellow", highlight=False)
