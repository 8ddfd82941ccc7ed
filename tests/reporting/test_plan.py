"""A plan on the terminal."""

from __future__ import annotations

import pytest

from dp_fedmed.cli import main


def test_many_clients_are_planned_by_size_and_shown_as_a_summary(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sizes = ",".join(f"25x{size}" for size in range(40, 80))
    words = ["--fast", "privacy=sample", "recipe=none", "--records", sizes]
    assert main(["plan", *words]) == 0
    shown = capsys.readouterr().out
    assert "1000 clients" in shown
    assert "6 of 40 sizes" in shown or "5 of 40 sizes" in shown
    rows = [line for line in shown.splitlines() if line.strip().startswith("client-")]
    assert len(rows) <= 6
    assert sum("binds" in row for row in rows) == 1, "whoever binds is always shown"
    assert {row.split()[2] for row in rows} >= {"40", "79"}, "the smallest and the largest too"


def test_without_privacy_it_says_what_privacy_would_need(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan", "--fast", "privacy=none"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "No guarantee" in shown
    assert "privacy.sample.target_epsilon" in shown
    assert "privacy.user.target_epsilon" in shown
    assert "it needs" not in shown, "the styles have targets of their own"
