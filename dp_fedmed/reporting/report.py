"""`report.html` of a run or a sweep, with its figures, its summary and a run's privacy card."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dp_fedmed.errors import ConfigError
from dp_fedmed.reporting.run_facts import is_run, read_run
from dp_fedmed.sweeps.facts import is_sweep, read_sweep

if TYPE_CHECKING:
    from rich.console import Console

PAGE = "report.html"


def write_report(
    directory: Path,
    *,
    output: Path | None = None,
    pictures: bool = True,
    runs: bool = True,
    console: Console | None = None,
) -> Path:
    """Write the page of a run's or a sweep's directory.

    Args:
        directory: the run's or the sweep's.
        output: where the page goes; None for `report.html` in the directory.
        pictures: whether test records are shown, as images or as points.
        runs: whether a sweep's runs get their own pages.
        console: where progress is shown.

    Returns:
        The page's path.

    Raises:
        ConfigError: if there is neither a run nor a sweep, or the page cannot be written.
    """
    if not directory.is_dir():
        raise ConfigError(
            f"{directory} is not a run or sweep directory: for example checkpoints/my_run"
        )
    page = output if output is not None else directory / PAGE
    if output is not None and (output.is_dir() or output.suffix.lower() not in (".html", ".htm")):
        raise ConfigError(f"-o {output} is not an HTML file: for example -o {output.stem}.html")
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        if is_sweep(directory):
            _write_sweep(
                directory,
                page,
                inside=output is None,
                pictures=pictures,
                runs=runs,
                console=console,
            )
        elif is_run(directory):
            write_run(directory, page, inside=output is None, pictures=pictures)
        else:
            raise ConfigError(
                f"{directory} holds neither a run (config.yaml) nor a sweep (sweep.yaml)"
            )
    except OSError as error:
        raise ConfigError(
            f"{error.filename or page} cannot be written: {error.strerror or error}; give another "
            "place with -o page.html"
        ) from error
    return page


def write_run(
    directory: Path, page: Path, *, inside: bool, pictures: bool = True, figures: bool = True
) -> None:
    """Write a run's page and card; `figures` adds the folder with figures and summary."""
    from dp_fedmed.reporting.figures import run_figures
    from dp_fedmed.reporting.page import save_figures
    from dp_fedmed.reporting.privacy_card import CARD_FILE, card_of
    from dp_fedmed.reporting.run_page import run_page, run_summary

    facts = read_run(directory)
    drawn = run_figures(facts, records=pictures)
    _write(page, run_page(facts, drawn, pictures=pictures))
    folder = page.with_suffix("")
    if figures:
        save_figures(drawn, folder / "figures")
        _write(folder / "report.md", run_summary(facts, drawn))
    card = (directory if inside else folder) / CARD_FILE
    if facts.ledger.verified or not card.exists():
        card.parent.mkdir(parents=True, exist_ok=True)
        _write(card, card_of(facts))


def _write_sweep(
    directory: Path,
    page: Path,
    *,
    inside: bool,
    pictures: bool,
    runs: bool,
    console: Console | None,
) -> None:
    from rich.progress import track

    from dp_fedmed.reporting.page import save_figures
    from dp_fedmed.sweeps.figures import sweep_figures
    from dp_fedmed.sweeps.page import sweep_page, sweep_summary

    facts = read_sweep(directory)
    folder = page.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    jobs = [job for job in facts.jobs if runs and job.folder and is_run(directory / job.folder)]
    links = {}
    for job in track(jobs, "pages of the runs", console=console, disable=len(jobs) < 2):
        own = directory / job.folder / PAGE if inside else folder / f"{job.folder}.html"
        links[job.number] = f"{job.folder}/{PAGE}" if inside else f"{folder.name}/{own.name}"
        write_run(directory / job.folder, own, inside=inside, pictures=pictures, figures=False)
    drawn = sweep_figures(facts)
    _write(page, sweep_page(facts, drawn, links))
    save_figures(drawn, folder / "figures")
    _write(folder / "report.md", sweep_summary(facts, drawn))


def _write(path: Path, text: str) -> None:
    from dp_fedmed.run.durable import write_file

    write_file(path, text.encode(), durable=False)
