"""Writes a run's `report.html`, with its figures, its summary and its privacy card."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dp_fedmed.privacy.files import write_file
from dp_fedmed.privacy.ledger import Head
from dp_fedmed.reporting.run_facts import LedgerFacts, RunFacts, read_run
from dp_fedmed.run.directory import CARD_FILE

if TYPE_CHECKING:
    from dp_fedmed.reporting.drawing import Drawn

PAGE = "report.html"


def write_run_report(
    directory: Path, page: Path, *, inside: bool, pictures: bool = True, figures: bool = True
) -> None:
    """Write a run's page and card.

    Args:
        directory: the run's.
        page: where the page goes.
        inside: whether the card goes into the run's directory, too.
        pictures: whether test records are shown, as images or as points.
        figures: whether to write the folder with figures and summary.
    """
    from dp_fedmed.reporting.figures import run_figures
    from dp_fedmed.reporting.run_page import run_page, run_summary

    facts = read_run(directory)
    drawn = run_figures(facts, records=pictures)
    write_text(page, run_page(facts, drawn, pictures=pictures))
    folder = page.with_suffix("")
    if figures:
        write_folder(folder, drawn, run_summary(facts, drawn))
    card = (directory if inside else folder) / CARD_FILE
    if facts.ledger.verified or not card.exists():
        card.parent.mkdir(parents=True, exist_ok=True)
        write_text(card, card_of(facts))


def write_card(run_dir: Path, head: Head | None) -> None:
    """Write the card of a run that has ended or stopped, with the head of its ledger."""
    facts = read_run(run_dir, ledger=False)
    facts.ledger = LedgerFacts(head)
    write_text(run_dir / CARD_FILE, card_of(facts))


def card_of(facts: RunFacts) -> str:
    """The record of a run that a data-protection officer keeps, from facts only."""
    from dp_fedmed.reporting import promises
    from dp_fedmed.reporting.page import markdown_template
    from dp_fedmed.reporting.words import metric_name

    card = markdown_template("card.md").render(
        facts=facts,
        promises=promises,
        metric=metric_name(facts.metric),
        observers=promises.observer_rows(facts),
        stretches=facts.stretches,
        head=facts.ledger.head,
    )
    return str(card)


def write_folder(folder: Path, figures: Sequence[Drawn], summary: str) -> None:
    """Write what lies beside a page: its figures as PNG and SVG, and a summary in Markdown."""
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    for drawn in figures:
        drawn.save(folder / "figures")
    write_text(folder / "report.md", summary)


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    write_file(path, text.encode(), durable=False)
