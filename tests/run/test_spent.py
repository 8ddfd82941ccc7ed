"""One fold over a ledger: what was charged, released, committed, gone back from and left open."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from dp_fedmed.errors import LedgerError
from dp_fedmed.federation.charges import Charge
from dp_fedmed.federation.plan import ClientPlan, PrivacyPlan
from dp_fedmed.privacy import PrivacyEvent
from dp_fedmed.privacy.ledger import Ledger, Record
from dp_fedmed.privacy.streams.keys import LEDGER_KEY_FILE, SECRET_FOLDER, MacKey
from dp_fedmed.run.spent import (
    CHARGE,
    CLOSE,
    COMMIT,
    LEDGER_FILE,
    OPEN,
    PHASE,
    RELEASE,
    RELEASES,
    REWIND,
    SCHEMA,
    RunHistory,
    fold,
    history_of,
    open_ledger,
)

Line = tuple[str, dict[str, Any]]
EVENT = PrivacyEvent.full(unit="record", noise_multiplier=3.0, adjacency="zero_out")
OWN = ClientPlan(records=9, sample_rate=1.0, steps=1, participations=None, noise_multiplier=3.0)
PLAN = PrivacyPlan(delta_sample=1e-5, delta_user=None, clients={"a": OWN}, user_event=None)
BEGUN: list[Line] = [
    (OPEN, {"schema": SCHEMA, "run": "r", "config": "c"}),
    (PHASE, {"phase": 0, "data": "d", "key": "k", "plan": PLAN.to_json()}),
    (COMMIT, {"round": 0, "checkpoint": "c0"}),
]


def charged(server_round: int, phase: int = 0) -> Line:
    made = Charge(
        phase=phase, server_round=server_round, digest="ab", cohort=["a"], clients={"a": EVENT}
    )
    return CHARGE, made.body()


def paid(server_round: int, number: int) -> list[Line]:
    """A whole round; `number` is that of its charge."""
    return [
        charged(server_round),
        (RELEASE, {"charge": number}),
        (COMMIT, {"round": server_round, "checkpoint": f"c{server_round}"}),
    ]


def history(lines: Iterable[Line]) -> RunHistory:
    return fold(Record(number, kind, body, "") for number, (kind, body) in enumerate(lines))


def test_nothing_has_happened_before_the_first_record() -> None:
    empty = history([])
    assert (empty.round, empty.phase, empty.last_commit) == (-1, -1, -1)
    assert (empty.open_round, empty.closed) == (None, None)


def test_whole_rounds_are_charged_released_and_committed() -> None:
    found = history([*BEGUN, *paid(1, 3), *paid(2, 6)])
    assert [(each.server_round, each.number) for each in found.charges] == [(1, 3), (2, 6)]
    assert found.charges[0].clients == {"a": EVENT}
    assert {charge: record.number for charge, record in found.released.items()} == {3: 4, 6: 7}
    assert (found.round, found.last_commit, found.open_round) == (2, 8, None)
    assert found.plans == {0: PLAN}


def test_a_round_that_a_crash_left_open_is_spent_and_not_stood_on() -> None:
    for left in ([charged(1)], [charged(1), (RELEASE, {"charge": 3})]):
        found = history([*BEGUN, *left])
        assert found.open_round == 1
        assert found.round == 0
        assert len(found.charges) == 1
    assert history([*BEGUN, charged(1), (CLOSE, {"reason": "budget"})]).open_round is None


def test_going_back_gives_nothing_back() -> None:
    found = history([*BEGUN, *paid(1, 3), *paid(2, 6), (REWIND, {"round": 0})])
    assert found.committed == {0: "c0"}
    assert found.abandoned == {(1, "c1"): 9, (2, "c2"): 9}
    assert [each.server_round for each in found.charges] == [1, 2], "what is spent stays spent"
    assert set(found.released) == {3, 6}


def test_a_round_done_again_after_going_back_is_paid_for_a_second_time() -> None:
    found = history([*BEGUN, *paid(1, 3), (REWIND, {"round": 0}), *paid(1, 7)])
    assert [each.number for each in found.charges] == [3, 7]
    assert found.committed == {0: "c0", 1: "c1"}


def test_every_phase_keeps_its_plan_and_the_last_is_in_force() -> None:
    later = (PHASE, {"phase": 1, "data": "e", "key": None, "plan": None, "config": "c2"})
    found = history([*BEGUN, *paid(1, 3), later, charged(2, phase=1)])
    assert found.plans == {0: PLAN, 1: None}
    assert (found.phase, found.data, found.key) == (1, "e", None)
    assert found.configs == ["c", "c2"]
    assert [each.phase for each in found.charges] == [0, 1]


def test_a_run_that_goes_on_is_not_closed() -> None:
    closed = [*BEGUN, *paid(1, 3), (CLOSE, {"reason": "completed"})]
    assert history(closed).closed == "completed"
    assert history([*closed, charged(2)]).closed is None


def kept(run_dir: Path, lines: Iterable[Line]) -> Ledger:
    path = run_dir / LEDGER_FILE
    path.parent.mkdir(parents=True)
    (run_dir / SECRET_FOLDER).mkdir(mode=0o700, parents=True, exist_ok=True)
    key = MacKey.create(run_dir / SECRET_FOLDER / LEDGER_KEY_FILE)
    ledger = Ledger(path, key, durable=False)
    for kind, body in lines:
        ledger.append(kind, body)
    return ledger


def test_a_ledger_on_disk_says_what_was_written(tmp_path: Path) -> None:
    kept(tmp_path, [*BEGUN, *paid(1, 3)])
    ledger, _ = open_ledger(tmp_path)
    found = history_of(ledger)
    assert (found.run, found.round, len(found.charges)) == ("r", 1, 1)


def test_a_ledger_of_a_newer_schema_is_not_guessed_at(tmp_path: Path) -> None:
    newer = (OPEN, {"schema": SCHEMA + 1, "run": "r", "config": "c"})
    with pytest.raises(LedgerError, match=f"schema {SCHEMA + 1}.* update dp-fedmed"):
        history_of(kept(tmp_path, [newer, *BEGUN[1:]]))


@pytest.mark.parametrize("damage", ["beginning", "middle", "other key"])
def test_a_changed_ledger_is_refused(damage: str, tmp_path: Path) -> None:
    path = kept(tmp_path, [*BEGUN, *paid(1, 3)]).path
    lines = path.read_bytes().splitlines(keepends=True)
    if damage == "beginning":
        path.write_bytes(b"".join(lines[1:]))
    elif damage == "middle":
        path.write_bytes(b"".join(lines).replace(b'"round":1', b'"round":2'))
    else:
        file = tmp_path / SECRET_FOLDER / LEDGER_KEY_FILE
        file.unlink()
        MacKey.create(file)
    with pytest.raises(LedgerError):
        open_ledger(tmp_path)


def test_a_chain_that_begins_with_a_charge_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="does not begin with a run"):
        history_of(kept(tmp_path, [charged(1)]))


def test_releases_without_a_ledger_are_a_run_that_lost_it(tmp_path: Path) -> None:
    kept(tmp_path, BEGUN).path.unlink()
    with pytest.raises(LedgerError, match="no run has begun here"):
        open_ledger(tmp_path)
    (tmp_path / RELEASES).mkdir()
    with pytest.raises(LedgerError, match="what was spent is unknown"):
        open_ledger(tmp_path)
