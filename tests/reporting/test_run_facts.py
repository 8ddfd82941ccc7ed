"""What is read of a run, and what is not believed."""

from __future__ import annotations

import json
from pathlib import Path

from dp_fedmed.reporting.run_facts import read_run


def test_a_report_of_a_newer_version_promises_nothing(tmp_path: Path) -> None:
    guarantee = {"unit": "record", "epsilon": 1.0, "delta": 1e-5}
    for schema, held in ((1, 1), (99, 0)):
        content = {"schema": schema, "guarantees": [guarantee]}
        (tmp_path / "privacy_report.json").write_text(json.dumps(content))
        facts = read_run(tmp_path, ledger=False)
        assert len(facts.guarantees) == held
        assert any("schema 99" in problem for problem in facts.problems) is (not held)
