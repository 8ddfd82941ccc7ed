"""What runs on the same data have spent together."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dp_fedmed.config import ConfigError, compose
from dp_fedmed.federation.engines import run_federation
from dp_fedmed.privacy.ledger import LedgerError
from tests.federation.resume.runs import (
    SETTINGS,
    Stopper,
    resume,
    totals_agree,
)


def test_a_data_ledger_adds_up_what_runs_spent_on_the_same_data(tmp_path: Path) -> None:
    shared = ["data.id=biopsies", f"data_ledger={tmp_path}/shared.jsonl", "privacy=hybrid"]
    reports = []
    for number in range(3):
        path = tmp_path / f"run{number}"
        run_federation(compose([*SETTINGS, *shared, f"seed={number}", f"run_dir={path}"]))
        reports.append(json.loads((path / "privacy_report.json").read_text()))
    totals = [report["all_runs_on_this_data"] for report in reports]
    assert [total["runs"] for total in totals] == [1, 2, 3]
    alone = {g["unit"]: g["epsilon"] for g in reports[0]["guarantees"]}
    for unit in ("record", "client"):
        spent = [total[unit]["epsilon"] for total in totals]
        assert spent[0] == pytest.approx(alone[unit])
        assert spent[0] < spent[1] < spent[2] < 3 * spent[0]
    with pytest.raises(ConfigError, match=r"data\.id=chest-xrays"):
        compose([f"data_ledger={tmp_path}/shared.jsonl"])


def test_a_data_ledger_that_comes_late_or_is_lost_counts_everything_or_refuses(
    copy: Callable[[str], Path], tmp_path: Path
) -> None:
    path, shared = copy("hybrid"), tmp_path / "shared.jsonl"
    resume(path, f"data_ledger={tmp_path}/late.jsonl", "data.id=late")
    assert totals_agree(path)
    words = ["data.id=x", f"data_ledger={shared}", "privacy=hybrid", f"run_dir={tmp_path}/run"]
    run_federation(compose([*SETTINGS, *words, "federation.sample_rate=0.5"]), Stopper(2))
    shared.unlink()
    with pytest.raises(LedgerError, match=r"shared\.jsonl is missing, though"):
        resume(tmp_path / "run")
    (tmp_path / "shared.jsonl.key").unlink()
    resume(tmp_path / "run")
    assert totals_agree(tmp_path / "run"), "and tell no more of the cohorts than the report"
    with pytest.raises(ConfigError, match="is another run"):
        resume(tmp_path / "run", "data.id=y")


def test_a_data_ledger_notices_a_copied_run_directory(tmp_path: Path) -> None:
    path, older = tmp_path / "run", tmp_path / "older"
    shared = ["data.id=biopsies", f"data_ledger={tmp_path}/shared.jsonl", "privacy=sample"]
    run_federation(compose([*SETTINGS, *shared, f"run_dir={path}"]), Stopper(2))
    shutil.copytree(path, older, symlinks=True)
    assert resume(path).stopped == "completed"
    with pytest.raises(LedgerError, match="the run directory is an older copy"):
        resume(older)
    (tmp_path / "shared.jsonl.key").unlink()
    with pytest.raises(LedgerError, match=r"shared\.jsonl\.key is missing"):
        resume(older)
