"""A run's ledger on the console."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from dp_fedmed.errors import EXIT_STOPPED
from dp_fedmed.reporting.ledger import WORST_CASE, print_ledger, print_verification


def console() -> tuple[Console, Callable[[], str]]:
    file = io.StringIO()
    return Console(file=file, width=200), lambda: " ".join(file.getvalue().split())


def test_every_record_is_a_line_and_nobody_is_named(made_run: Callable[[str], Path]) -> None:
    shown, said = console()
    print_ledger(made_run("hybrid"), shown)
    for word in ("the run begins", "phase 0 begins", "a noised sum is on disk", "the run ends"):
        assert word in said()
    assert said().count("CHARGE") == 3
    assert "client-0000" not in said()
    assert WORST_CASE in said()


def test_a_run_that_agrees_with_its_ledger_is_told_so(made_run: Callable[[str], Path]) -> None:
    shown, said = console()
    assert print_verification(made_run("sample"), shown) == 0
    assert "recomputed from the ledger alone" in said()
    assert "report and clients' ledgers agree with it." in said()
    assert WORST_CASE not in said(), "cohorts are no secret"


def test_what_does_not_agree_is_named(a_run: Callable[[str], Path]) -> None:
    path = a_run("sample")
    (path / "config.yaml").write_text("{}")
    shown, said = console()
    assert print_verification(path, shown) == EXIT_STOPPED
    assert "config.yaml is not what the ledger says" in said()
