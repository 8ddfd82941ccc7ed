"""One site: its runtime, its own ledger, rules and keys."""
