"""`dp-fedmed ledger`: what a run has spent, checked."""

from __future__ import annotations

import sys
from pathlib import Path

from dp_fedmed.errors import EXIT_USAGE

HELP = """\
dp-fedmed ledger show RUN_DIR     the ledger as a table, with ε after every charge
dp-fedmed ledger verify RUN_DIR   check every record and checkpoint, and recompute ε

Both read private/ledger.jsonl and private/secret/ledger.key. Neither prints who took part, nor a
digest of anything private. verify exits with 0 if everything agrees, with 1 if something does not
hold, and with 3 if a crash left a round open, which dp-fedmed resume RUN_DIR finishes.
"""


def main(arguments: list[str]) -> int:
    """Show or verify a run's ledger."""
    if {"-h", "--help"} & set(arguments):
        print(HELP, end="")
        return 0
    if len(arguments) != 2 or arguments[0] not in ("show", "verify"):
        print(HELP, end="", file=sys.stderr)
        return EXIT_USAGE
    from rich.console import Console

    from dp_fedmed.errors import ConfigError
    from dp_fedmed.reporting.ledger import print_ledger, print_verification

    path = Path(arguments[1]).resolve()
    if not path.is_dir():
        raise ConfigError(f"{arguments[1]} is not a run directory: for example checkpoints/my_run")
    if arguments[0] == "show":
        print_ledger(path, Console())
        return 0
    return print_verification(path, Console())
