"""What a sweep has spent, in sentences."""

from __future__ import annotations

from pathlib import Path

from dp_fedmed.sweeps.facts import facts_of
from dp_fedmed.sweeps.summary import summarize
from dp_fedmed.sweeps.words import spending
from tests.sweeps.rows import PRIVATE, row


def test_each_task_adds_up_by_itself(tmp_path: Path) -> None:
    rows = [row(n, {}, 0.9, **PRIVATE) for n in range(2)]
    rows += [row(2 + n, {}, 0.9, **PRIVATE, task="cells") for n in range(3)]
    digits, cells = spending(summarize(facts_of(tmp_path, rows)))
    assert digits.startswith("Publishing all 2 runs of digits that protect one record costs it")
    assert "ε = 2.00" in digits
    assert cells.startswith("Publishing all 3 runs of cells")
    assert "ε = 3.00" in cells


def test_runs_without_privacy_have_spent_nothing_that_adds_up(tmp_path: Path) -> None:
    assert spending(summarize(facts_of(tmp_path, [row(n, {}, 0.9) for n in range(3)]))) == []
    assert spending(summarize(facts_of(tmp_path, []))) == []
