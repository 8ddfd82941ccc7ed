"""`dp-fedmed report`: one page about a run, or about a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dp_fedmed.commands.arguments import Arguments
from dp_fedmed.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

HELP = """\
dp-fedmed report RUN_OR_SWEEP [-o FILE] [--open] [--no-pictures] [--no-runs]

  dp-fedmed report checkpoints/my_run              writes checkpoints/my_run/report.html
  dp-fedmed report checkpoints/my_sweep            compares its runs, and makes each one's page
  dp-fedmed report checkpoints/my_run -o page.html --open

One self-contained page: it opens from disk, needs no network, and prints. Beside it, in a folder
of the same name, are its figures as PNG and SVG and a summary in Markdown for a paper. A run also
gets its privacy_card.md.

  -o, --output FILE   where the page goes; then nothing is written into the run's directory
  --open              show it in the browser
  --no-pictures       leave test images and single predictions out: they are records too
  --no-runs           of a sweep, only the comparison

Only what may be published is read; of private/ that is the ledger's head, where its key is there.
A run that has not ended is reported as far as it got.
"""


def main(arguments: list[str]) -> int:
    """Write the page of the directory that is named."""
    parser = Arguments(HELP, directory="RUN_OR_SWEEP", overrides=False)
    parser.flag("-o", "--output", type=Path).flag("--open").flag("--no-pictures").flag("--no-runs")
    given = parser.read(arguments)
    from rich.console import Console

    page = write_report(
        Path(given.directory),
        output=given.output,
        pictures=not given.no_pictures,
        runs=not given.no_runs,
        console=Console(stderr=True),
    )
    print(page)
    if given.open:
        import webbrowser

        webbrowser.open(page.resolve().as_uri())
    return 0


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
    from dp_fedmed.reporting.report import PAGE, write_run_report
    from dp_fedmed.reporting.run_facts import is_run
    from dp_fedmed.sweeps.facts import has_results
    from dp_fedmed.sweeps.page import write_sweep_report

    if not directory.is_dir():
        raise ConfigError(
            f"{directory} is not a run or sweep directory: for example checkpoints/my_run"
        )
    page = output if output is not None else directory / PAGE
    if output is not None and (output.is_dir() or output.suffix.lower() not in (".html", ".htm")):
        raise ConfigError(f"-o {output} is not an HTML file: for example -o {output.stem}.html")
    inside = output is None
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        if has_results(directory):
            write_sweep_report(
                directory, page, inside=inside, pictures=pictures, runs=runs, console=console
            )
        elif is_run(directory):
            write_run_report(directory, page, inside=inside, pictures=pictures)
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
