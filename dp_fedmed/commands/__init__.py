"""The commands of `dp-fedmed`, one module each, with its `HELP` and `main`.

A command's `main` takes the words after its name and returns an exit code. Help and the errors that
are meant for a person are printed by `dp_fedmed.cli`.
"""

COMMANDS = (
    *("plan", "run", "resume", "report", "ledger"),
    *("audit", "attack", "reconstruct", "data"),
)
