"""What runs on the same data have spent together."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dp_fedmed.commands.report import write_report
from dp_fedmed.config import compose
from dp_fedmed.errors import ConfigError, LedgerError
from dp_fedmed.launch import run_federation
from dp_fedmed.run.verify import LedgerView
from tests.runs.resume.runs import (
    SETTINGS,
    Stopper,
    resume,
    totals_agree,
)


def test_a_data_ledger_adds_up_what_runs_spent_on_the_same_data(tmp_path: Path) -> None:
    shared = ["data.id=biopsies", f"data_ledger={tmp_path}/shared.jsonl", "privacy=hybrid"]
    shared.append("privacy.accountant=rdp")
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


def test_every_run_counts_for_both_units_whichever_it_protects(tmp_path: Path) -> None:
    """A record in a run for clients, and a client in a run for records."""
    shared = ["data.id=biopsies", f"data_ledger={tmp_path}/shared.jsonl"]
    shared.append("privacy.accountant=rdp")
    totals = {}
    for style in ("user", "hybrid", "sample"):
        path = tmp_path / style
        run_federation(compose([*SETTINGS, *shared, f"privacy={style}", f"run_dir={path}"]))
        report = json.loads((path / "privacy_report.json").read_text())
        totals[style] = report["all_runs_on_this_data"]
        alone = {g["unit"]: g["epsilon"] for g in report["guarantees"]}
        if style == "user":
            assert totals[style]["record"] is None, "a client's guarantee is its records' too"
            assert totals[style]["client"]["epsilon"] == pytest.approx(alone["client"])
            client_alone = alone["client"]
        elif style == "hybrid":
            in_the_first = totals[style]["record"]["epsilon"] - alone["record"]
            assert in_the_first > 2 * client_alone, "it goes, and comes back"
    assert totals["hybrid"]["unbounded"] == {}
    assert totals["sample"]["client"] is None, "a run for records promises a client nothing"
    assert totals["sample"]["unbounded"] == {"client": 1}
    assert totals["sample"]["record"]["epsilon"] > totals["hybrid"]["record"]["epsilon"]
    write_report(tmp_path / "sample")
    page = (tmp_path / "sample" / "report.html").read_text()
    assert "no bound for one client, since 1 protect records only" in page


def test_samplers_whose_guarantees_do_not_compose_share_no_ledger(tmp_path: Path) -> None:
    words = [*SETTINGS, "privacy=user", "data.id=biopsies", f"data_ledger={tmp_path}/shared.jsonl"]
    run_federation(compose([*words, f"run_dir={tmp_path}/poisson"]))
    fixed = compose([*words, "federation.sampler=fixed", f"run_dir={tmp_path}/fixed"])
    with pytest.raises(LedgerError, match="zero_out neighbours, and other runs"):
        run_federation(fixed)
    assert "SPENT" in (tmp_path / "shared.jsonl").read_text()
    assert not [r for r in LedgerView(tmp_path / "fixed").ledger.records if r.kind == "CHARGE"]


@pytest.mark.parametrize("words", [["privacy=none"], ["privacy=user", "privacy.noise_seed=1"]])
def test_a_run_that_protects_nobody_shares_no_ledger(words: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"protects nobody, so no sum in data_ledger=/x/y\.jsonl"):
        compose([*words, "data.id=biopsies", "data_ledger=/x/y.jsonl"])


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
