"""Breaks of what composes with what in a history."""

from __future__ import annotations

from tests.breaks.base import Break

BREAKS: list[Break] = [
    Break(
        "a history takes removals and replacements as one relation",
        "privacy/accounting/history.py",
        "if self._replaces is not None and self._replaces != replaces:",
        "if False:",
        "tests/privacy/accounting/test_group.py"
        "::test_a_history_refuses_steps_of_another_neighbouring_relation",
    ),
]
