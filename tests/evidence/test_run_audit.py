"""An audit of whole runs: repeats, and claims out of reach."""

from __future__ import annotations

from dp_fedmed.evidence.audit import (
    Verdict,
)
from tests.evidence.test_audit import record_level, whole_run


def test_repeats_are_counted_together() -> None:
    found = whole_run(record_level(), count=200, repeat=3)
    settings = found.settings
    assert found.canaries == 600
    assert found.guesses == 3 * (settings["guessed_in"] + settings["guessed_out"])


def test_a_claim_out_of_reach_is_called_so() -> None:
    found = whole_run(record_level("privacy.sample.noise_multiplier=1"), count=60)
    assert found.verdict is Verdict.inconclusive
    assert "--repeat" in found.statement
