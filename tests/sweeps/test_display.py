"""What the terminal says of a sweep."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from rich.console import Console

from dp_fedmed.sweeps.display import SweepDisplay, describe_row, spending_lines
from dp_fedmed.sweeps.facts import facts_of
from dp_fedmed.sweeps.page import sweep_page, sweep_summary
from dp_fedmed.sweeps.summary import NOT_PRIVATE
from tests.sweeps.rows import PRIVATE, row


def test_what_runs_spend_is_added_up(tmp_path: Path) -> None:
    both = {"epsilon": {"sample": 2.0, "user": 4.0}, "delta": {"sample": 1e-5, "user": 1e-3}}
    rows = [
        row(0, {}, 0.9, **PRIVATE),
        row(1, {}, 0.9, **{**PRIVATE, **both}),
        row(2, {}, 0.9),
    ]

    def said(*more: dict[str, Any]) -> str:
        return " ".join(spending_lines(facts_of(tmp_path, [*rows, *more])))

    assert "all 2 runs of digits that protect one record costs it at most ε = 3.00 at" in said()
    assert "the other 1 promise one record nothing" in said()
    assert "one client" not in said(), "one run alone is no sum"
    early = row(3, {}, 0.9, **{**PRIVATE, "epsilon": {"sample": 4.0}}, status="stopped", test={})
    assert "ε = 7.00 " in said(early), "what stopped early has spent too"
    failed = row(4, {}, 0.9, epsilon={}, delta={}, status="failed")
    assert said(failed) == said()
    broke = row(4, {}, 0.9, style="sample", epsilon={}, delta={}, status="failed", rounds=3)
    assert "(004) is in their ledgers, not in these sums" in said(broke)


def test_a_public_noise_seed_promises_nothing_on_the_terminal_and_on_the_page(
    tmp_path: Path,
) -> None:
    public = {**PRIVATE, "noise_is_private": False, "epsilon": {"sample": 3.0}}
    rows = [row(n, {"privacy": "sample", "seed": n}, 0.9, **public) for n in range(2)]
    facts = facts_of(tmp_path, rows)
    shown = io.StringIO()
    SweepDisplay(tmp_path, [], rows, Console(file=shown, width=200)).summary(rows)
    page, terminal = sweep_page(facts, [], {}), " ".join(shown.getvalue().split())
    for text in (terminal, page, sweep_summary(facts, [])):
        assert "6.0" not in text
        assert "3.0" not in text
    assert NOT_PRIVATE in terminal
    assert NOT_PRIVATE in page
    assert "noise seed is public" in describe_row(rows[0] | {"seconds": 1.0}, "")
    assert "ε" not in describe_row(rows[0] | {"seconds": 1.0}, "")
