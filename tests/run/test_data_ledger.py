"""What runs on the same data have spent together, without running one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dp_fedmed.errors import LedgerError
from dp_fedmed.federation.charges import to_entries
from dp_fedmed.privacy import PrivacyEvent
from dp_fedmed.run.data_ledger import RunSpending, open_data_ledger

RECORD = PrivacyEvent.poisson(unit="record", noise_multiplier=2.0, sample_rate=0.1)
NOISIER = PrivacyEvent.poisson(unit="record", noise_multiplier=4.0, sample_rate=0.1)
CLIENT = PrivacyEvent.full(unit="client", noise_multiplier=5.0)


def test_a_run_counts_with_its_worst_client() -> None:
    run = RunSpending()
    assert not run.records.any()
    run.add({"federation": None, "clients": to_entries({"a": RECORD, "b": NOISIER})})
    alone = RunSpending()
    alone.add({"federation": None, "clients": to_entries({"a": RECORD})})
    assert np.array_equal(run.records, alone.records)
    run.add({"federation": None, "clients": to_entries({"a": RECORD})})
    assert run.records == pytest.approx(2 * alone.records)
    assert not run.federation
    assert run.neighbours == set()


def test_client_level_events_are_kept_with_their_neighbours() -> None:
    run = RunSpending()
    run.add({"federation": CLIENT.to_json(), "clients": []})
    run.add({"federation": CLIENT.to_json(), "clients": []})
    assert run.federation.rows() == [(5.0, 1.0, 2)]
    assert run.neighbours == {CLIENT.adjacency}


def test_a_ledger_is_made_once_and_never_without_its_key(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "shared.jsonl"
    assert len(open_data_ledger(path).records) == 1
    assert len(open_data_ledger(path).records) == 1
    key = path.with_name("shared.jsonl.key")
    assert key.stat().st_mode & 0o077 == 0
    kept = key.read_bytes()
    key.unlink()
    with pytest.raises(LedgerError, match=r"shared\.jsonl\.key is missing"):
        open_data_ledger(path)
    key.write_bytes(kept)
    key.chmod(0o644)
    with pytest.raises(LedgerError):
        open_data_ledger(path)
    key.chmod(0o600)
    path.write_bytes(path.read_bytes().replace(b"OPEN", b"SPENT"))
    with pytest.raises(LedgerError):
        open_data_ledger(path)
