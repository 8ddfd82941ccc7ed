"""What all runs on the same data have spent: read, added to in thought, and never written."""

from __future__ import annotations

from pathlib import Path

import pytest

from dp_fedmed.config import compose
from dp_fedmed.errors import LedgerError
from dp_fedmed.planning.forecast import Forecast, forecast
from dp_fedmed.privacy.ledger import Head
from dp_fedmed.reporting.shared_data import SharedSpending, shared_spending
from dp_fedmed.run.data_ledger import DataLedger

RECORDS = dict.fromkeys("abcde", 90)


def planned(path: Path | None, style: str = "sample", *words: str) -> Forecast:
    shared = [] if path is None else [f"data_ledger={path}", "data.id=biopsies"]
    return forecast(compose([f"privacy={style}", *shared, *words]), RECORDS, fast=True)


def spent_by(path: Path, run: str, made: Forecast, data_id: str = "biopsies") -> None:
    ledger = DataLedger(path, data_id=data_id, run=run)
    ledger.note(Head(0, run), made.client_event, made.record_events)


def found(made: Forecast) -> SharedSpending:
    shared = shared_spending(made.config, made)
    assert shared is not None
    return shared


def test_there_is_nothing_to_share_without_a_ledger_or_a_guarantee(tmp_path: Path) -> None:
    alone, shared = planned(None), planned(tmp_path / "shared.jsonl")
    assert shared_spending(alone.config, alone) is None
    assert shared_spending(shared.config, planned(None, "none")) is None


def test_a_ledger_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    assert found(planned(tmp_path / "shared.jsonl")) == SharedSpending("biopsies", 0)
    assert list(tmp_path.iterdir()) == []


def test_runs_on_the_same_data_count_and_those_on_others_do_not(tmp_path: Path) -> None:
    path = tmp_path / "shared.jsonl"
    made = planned(path)
    spent_by(path, "other", made, data_id="scans")
    none = found(made)
    assert none.runs == 0
    assert none.before is not None
    assert none.before["record"] is None
    spent_by(path, "first", made)
    content = path.read_bytes()
    one = found(made)
    assert one.runs == 1
    assert none.after is not None
    assert one.before is not None
    assert one.after is not None
    assert one.before["record"] == none.after["record"], "as it was planned, so it was spent"
    before, after = one.before["record"], one.after["record"]
    assert before is not None
    assert after is not None
    assert before["epsilon"] < after["epsilon"] < 2 * before["epsilon"]
    assert path.read_bytes() == content


def test_a_guarantee_that_does_not_compose_with_others_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "shared.jsonl"
    fixed = ("federation.sampler=fixed", "federation.sample_rate=0.5")
    poisson = ("federation.sampler=poisson", "federation.sample_rate=0.5")
    spent_by(path, "first", planned(path, "user", *fixed))
    made = planned(path, "user", *poisson)
    with pytest.raises(LedgerError, match="the two do not compose"):
        shared_spending(made.config, made)


def test_a_damaged_ledger_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "shared.jsonl"
    made = planned(path)
    spent_by(path, "first", made)
    path.write_bytes(path.read_bytes().replace(b"first", b"other"))
    with pytest.raises(LedgerError):
        shared_spending(made.config, made)
    path.with_name("shared.jsonl.key").unlink()
    with pytest.raises(LedgerError, match="key is missing"):
        shared_spending(made.config, made)
