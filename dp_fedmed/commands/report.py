"""`dp-fedmed report`: one page about a run, or about a sweep."""

from __future__ import annotations

from pathlib import Path

from dp_fedmed.commands.arguments import Arguments

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

    from dp_fedmed.reporting.report import write_report

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
