"""Breaks of what composes in a history, and of parts that a library user puts together."""

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
    Break(
        "a strategy's sampler need not be the one that its ledger charges for",
        "federation/privacy_guard.py",
        "        if _accounted(drawn) != _accounted(charged) or stated != [charged]:",
        "        if not stated:",
        "tests/runs/outside/test_your_flower_app.py::"
        "test_a_sampler_that_the_mechanism_was_not_made_for_is_refused_before_a_charge",
    ),
    Break(
        "a library's result shows the losses of a secret cohort",
        "federation/strategy.py",
        "        if loss is not None and not self.hides_cohorts:",
        "        if loss is not None:",
        "tests/runs/outside/test_your_flower_app.py::"
        "test_the_losses_of_a_secret_cohort_are_not_in_the_result",
    ),
]
