"""`dp-fedmed ledger`: what a run has spent, checked."""

from __future__ import annotations

from dp_fedmed.commands.arguments import Arguments, existing_directory

HELP = """\
dp-fedmed ledger show RUN_DIR     the ledger as a table, with ε after every charge
dp-fedmed ledger verify RUN_DIR   check every record and checkpoint, and recompute ε

Both read private/ledger.jsonl and private/secret/ledger.key. Neither prints who took part, nor a
digest of anything private. verify exits with 0 if everything agrees, with 1 if something does not
hold, and with 3 if a crash left a round open, which dp-fedmed resume RUN_DIR finishes.
"""


def main(arguments: list[str]) -> int:
    """Show or verify a run's ledger."""
    parser = Arguments(HELP, action=("show", "verify"), directory="RUN_DIR", overrides=False)
    given = parser.read(arguments)
    path = existing_directory(given.directory)
    from rich.console import Console

    from dp_fedmed.reporting.ledger import print_ledger, print_verification

    if given.action == "verify":
        return print_verification(path, Console())
    print_ledger(path, Console())
    return 0
