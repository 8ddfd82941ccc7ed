"""`dp-fedmed report`: one page about a run, or about a sweep."""

from __future__ import annotations

import sys
from pathlib import Path

from dp_fedmed.errors import EXIT_USAGE

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
    if {"-h", "--help"} & set(arguments):
        print(HELP, end="")
        return 0
    import argparse

    parser = argparse.ArgumentParser(prog="dp-fedmed report", add_help=False)
    parser.add_argument("directory")
    parser.add_argument("-o", "--output")
    parser.add_argument("--open", action="store_true")
    parser.add_argument("--no-pictures", dest="pictures", action="store_false")
    parser.add_argument("--no-runs", dest="runs", action="store_false")
    if not arguments:
        print(HELP, end="", file=sys.stderr)
        return EXIT_USAGE
    try:
        given = parser.parse_args(arguments)
    except SystemExit:
        return EXIT_USAGE
    from rich.console import Console

    from dp_fedmed.reporting.report import write_report

    output = None if given.output is None else Path(given.output)
    page = write_report(
        Path(given.directory),
        output=output,
        pictures=given.pictures,
        runs=given.runs,
        console=Console(stderr=True),
    )
    print(page)
    if given.open:
        import webbrowser

        webbrowser.open(page.resolve().as_uri())
    return 0
