"""What an audit found, as a table, a picture and a bar."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from dp_fedmed.config import compose
from dp_fedmed.evidence.audit import Audit, Options
from dp_fedmed.evidence.audit_report import AuditProgress, audit_table, plot_audit
from dp_fedmed.evidence.findings import Attack, AuditTarget, Finding, Verdict
from dp_fedmed.federation.rounds import RoundRecord
from dp_fedmed.privacy import PrivacyEvent

SCORES = np.random.default_rng(0).normal(size=200)
TARGET = AuditTarget(
    unit="record",
    noise_multiplier=1.0,
    sample_rate=1.0,
    steps=1,
    rounds=1,
    clip_norm=1.0,
    delta=1e-5,
    adjacency="zero_out",
    event=PrivacyEvent.full(unit="record", noise_multiplier=1.0),
)
FOUND = Finding(
    attack=Attack.release,
    target=TARGET,
    attacked={},
    replaced="",
    claim=3.0,
    delta=1e-5,
    lower_bound=0.5,
    largest_bound=6.0,
    canaries=200,
    guesses=40,
    correct=25,
    verdict=Verdict.consistent,
    statement="",
    scores=SCORES,
    coins=SCORES > 0,
    marks=(-1.0, 1.0),
)


def audit_of(*findings: Finding) -> Audit:
    return Audit(config=compose(["privacy=sample"]), options=Options(), findings=list(findings))


def shown(audit: Audit) -> str:
    console = Console(file=io.StringIO(), width=160, record=True)
    console.print(audit_table(audit))
    return console.export_text()


def test_claim_and_bound_stand_side_by_side() -> None:
    text = shown(audit_of(FOUND))
    for word in ("3.000", "> 0.500", "> 6.000", "25 of 40", str(Verdict.consistent), "95%"):
        assert word in text


def test_what_is_missing_is_none_or_unbounded() -> None:
    bad = replace(FOUND, claim=None, lower_bound=None, verdict=Verdict.not_private)
    text = shown(audit_of(FOUND, bad))
    assert "none" in text
    assert "∞" in text
    assert str(Verdict.not_private) in text


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"claim": None, "lower_bound": None, "largest_bound": None},
        {"scores": np.zeros(0), "coins": np.zeros(0, np.bool_), "marks": ()},
        {"scores": np.ones(4), "coins": np.array([True, False, True, False])},
        {"claim": 0.0, "lower_bound": 0.0, "largest_bound": 0.0},
    ],
)
def test_every_finding_can_be_drawn(changes: dict[str, Any], tmp_path: Path) -> None:
    plot_audit(audit_of(replace(FOUND, **changes), FOUND), tmp_path / "audit.png")
    assert (tmp_path / "audit.png").stat().st_size > 1000


def test_a_bar_follows_releases_and_rounds() -> None:
    progress = AuditProgress(Console(file=io.StringIO(), force_terminal=True))
    first, second = progress.watch("records", 10, "releases"), progress.watch("run", 5, "rounds")
    first.advance()
    first.advance()
    second.round(RoundRecord(3))
    assert [task.completed for task in progress.bars.tasks] == [2, 3]
    assert AuditProgress(Console(file=io.StringIO())).bars.disable, "a file has no bar"
