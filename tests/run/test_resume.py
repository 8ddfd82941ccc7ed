"""What a ledger says about its run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dp_fedmed.errors import LedgerError
from dp_fedmed.privacy.ledger import Ledger
from dp_fedmed.privacy.streams.keys import MacKey
from dp_fedmed.run.resume import client_ledgers
from dp_fedmed.run.spent import (
    CLOSE,
    COMMIT,
    CONFIG,
    OPEN,
    PHASE,
    REWIND,
    SCHEMA,
    history_of,
    open_ledger,
)

BEGUN: list[tuple[str, dict[str, Any]]] = [
    (OPEN, {"schema": SCHEMA, "run": "r", "config": "first"}),
    (PHASE, {"phase": 0, "data": "d", "key": "k", "plan": None}),
    *((COMMIT, {"phase": 0, "round": n, "checkpoint": f"c{n}"}) for n in range(4)),
]


def ledger_of(folder: Path, *records: tuple[str, dict[str, Any]]) -> Ledger:
    ledger = Ledger(folder / "ledger.jsonl", MacKey.generate(), durable=False)
    for kind, body in records:
        ledger.append(kind, body)
    return ledger


def test_rounds_that_were_gone_back_from_are_not_stood_on(tmp_path: Path) -> None:
    more = [(REWIND, {"round": 1}), (COMMIT, {"phase": 0, "round": 2, "checkpoint": "other"})]
    history = history_of(ledger_of(tmp_path, *BEGUN, *more))
    assert history.committed == {0: "c0", 1: "c1", 2: "other"}
    assert history.round == 2
    assert history.abandoned == {(2, "c2"): 6, (3, "c3"): 6}
    assert (history.run, history.phase, history.data, history.key) == ("r", 0, "d", "k")


def test_settings_are_kept_in_their_order_and_an_end_may_be_gone_on_from(tmp_path: Path) -> None:
    closed = [*BEGUN, (CONFIG, {"config": "second"}), (CLOSE, {"reason": "completed"})]
    ledger = ledger_of(tmp_path, *closed)
    assert history_of(ledger).configs == ["first", "second"]
    assert history_of(ledger).closed == "completed"
    ledger.append(REWIND, {"round": 1})
    assert history_of(ledger).closed == "completed", "going back does not open it"
    ledger.append(PHASE, {"phase": 1, "data": "d", "key": None, "plan": None})
    assert history_of(ledger).closed is None
    assert history_of(ledger).phase == 1


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([], "is empty: no run has begun here"),
        ([(CLOSE, {"reason": "completed"})], "does not begin with a run"),
        ([(OPEN, {"schema": SCHEMA + 1, "run": "r", "config": ""})], "update dp-fedmed"),
    ],
)
def test_what_is_no_runs_ledger_is_refused(
    records: list[tuple[str, dict[str, Any]]], said: str, tmp_path: Path
) -> None:
    with pytest.raises(LedgerError, match=said):
        history_of(ledger_of(tmp_path, *records))


def test_a_folder_without_a_ledger_is_told_apart_from_one_that_lost_it(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="no run has begun here"):
        open_ledger(tmp_path)
    (tmp_path / "round_000001").mkdir()
    with pytest.raises(LedgerError, match="is missing, so the ledger cannot be checked"):
        open_ledger(tmp_path)


def test_simulated_clients_have_ledgers_in_the_private_folder(tmp_path: Path) -> None:
    assert list(client_ledgers(tmp_path)) == []
    folder = tmp_path / "private" / "clients"
    folder.mkdir(parents=True)
    for name in ("b.jsonl", "a.jsonl", "notes.txt"):
        (folder / name).touch()
    assert [file.name for file in client_ledgers(tmp_path)] == ["a.jsonl", "b.jsonl"]
