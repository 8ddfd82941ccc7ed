"""Writes a sweep's `report.html`, with its figures and summary, and the pages of its runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dp_fedmed.reporting.report import PAGE, write_folder, write_run_report, write_text
from dp_fedmed.reporting.run_facts import is_run
from dp_fedmed.sweeps.facts import read_facts

if TYPE_CHECKING:
    from rich.console import Console


def write_sweep_report(
    directory: Path,
    page: Path,
    *,
    inside: bool,
    pictures: bool = True,
    runs: bool = True,
    console: Console | None = None,
) -> None:
    """Write a sweep's page.

    Args:
        directory: the sweep's.
        page: where the page goes.
        inside: whether the pages of runs go into their directories, too.
        pictures: whether test records are shown, as images or as points.
        runs: whether the runs get pages of their own.
        console: where progress is shown.
    """
    from rich.progress import track

    from dp_fedmed.sweeps.figures import sweep_figures
    from dp_fedmed.sweeps.page import sweep_page, sweep_summary

    facts = read_facts(directory)
    folder = page.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    jobs = [job for job in facts.jobs if runs and job.folder and is_run(directory / job.folder)]
    links = {}
    for job in track(jobs, "pages of the runs", console=console, disable=len(jobs) < 2):
        own = directory / job.folder / PAGE if inside else folder / f"{job.folder}.html"
        links[job.number] = f"{job.folder}/{PAGE}" if inside else f"{folder.name}/{own.name}"
        run_dir = directory / job.folder
        write_run_report(run_dir, own, inside=inside, pictures=pictures, figures=False)
    drawn = sweep_figures(facts)
    write_text(page, sweep_page(facts, drawn, links))
    write_folder(folder, drawn, sweep_summary(facts, drawn))
