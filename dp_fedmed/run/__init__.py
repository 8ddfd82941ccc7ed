"""One run on disk: its directory, ledger, checkpoints and report."""
