"""What a run's ledger says: read once from its first record to its last.

It, not a checkpoint, is the truth about what was spent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dp_fedmed.errors import LedgerError
from dp_fedmed.federation.charges import Charge
from dp_fedmed.federation.plan import PrivacyPlan
from dp_fedmed.privacy.ledger import Ledger, Record
from dp_fedmed.privacy.streams.keys import LEDGER_KEY_FILE, SECRET_FOLDER, MacKey

SCHEMA = 1
OPEN, CONFIG, PHASE, REWIND, CLOSE = "OPEN", "CONFIG", "PHASE", "REWIND", "CLOSE"
CHARGE, RELEASE, COMMIT = "CHARGE", "RELEASE", "COMMIT"
LEDGER_FILE = Path("private") / "ledger.jsonl"
RELEASES = Path("private") / "releases"


@dataclass
class RunHistory:
    """What a ledger says about its run.

    Attributes:
        run: its id.
        configs: the settings in the order in which they were in force.
        phase: of the last PHASE; -1 before the first.
        plans: of every phase.
        data: keyed digest of the last phase's data.
        key: fingerprint of the last phase's noise key.
        charges: every round that was paid for, in order.
        released: RELEASE records by the number of their charge.
        committed: the hash of each round's checkpoint, for the rounds that the run stands on.
        last_commit: number of the last COMMIT; -1 before the first.
        abandoned: rounds that were gone back from, with their hashes: the REWIND that did it.
        open_round: charged and not committed, as a crash leaves it.
        closed: how the run ended, if it did.
    """

    run: str = ""
    configs: list[str] = field(default_factory=list)
    phase: int = -1
    plans: dict[int, PrivacyPlan | None] = field(default_factory=dict)
    data: str | None = None
    key: str | None = None
    charges: list[Charge] = field(default_factory=list)
    released: dict[int, Record] = field(default_factory=dict)
    committed: dict[int, str] = field(default_factory=dict)
    last_commit: int = -1
    abandoned: dict[tuple[int, str], int] = field(default_factory=dict)
    open_round: int | None = None
    closed: str | None = None

    @property
    def round(self) -> int:
        """The last committed round; -1 before the first."""
        return max(self.committed, default=-1)

    def add(self, record: Record) -> None:
        """Take in the next record."""
        body = record.body
        if record.kind != REWIND:
            self.closed = body["reason"] if record.kind == CLOSE else None
        if "config" in body:
            self.configs.append(body["config"])
        if record.kind == OPEN:
            self.run = body["run"]
        elif record.kind == PHASE:
            self.phase, self.data, self.key = body["phase"], body["data"], body["key"]
            self.plans[self.phase] = read_plan(body)
        elif record.kind == CHARGE:
            self.charges.append(Charge.from_record(record))
            self.open_round = int(body["round"])
        elif record.kind == RELEASE:
            self.released[body["charge"]] = record
        elif record.kind == COMMIT:
            self.committed[body["round"]] = body["checkpoint"]
            self.last_commit, self.open_round = record.number, None
        elif record.kind == CLOSE:
            self.open_round = None
        elif record.kind == REWIND:
            later = [item for item in self.committed.items() if item[0] > body["round"]]
            self.abandoned.update(dict.fromkeys(later, record.number))
            self.committed = {r: c for r, c in self.committed.items() if r <= body["round"]}


def fold(records: Iterable[Record]) -> RunHistory:
    """What these records say."""
    history = RunHistory()
    for record in records:
        history.add(record)
    return history


def history_of(ledger: Ledger) -> RunHistory:
    """What a checked ledger says.

    Raises:
        LedgerError: if it does not begin with a run, or is of a newer schema.
    """
    records = ledger.records
    if not records:
        raise LedgerError(f"{ledger.path} is empty: no run has begun here; start it anew elsewhere")
    if records[0].kind != OPEN:
        raise LedgerError(f"{ledger.path} does not begin with a run: restore it")
    schema = records[0].body["schema"]
    if schema > SCHEMA:
        raise LedgerError(
            f"{ledger.path} has schema {schema}, this version reads up to {SCHEMA}: update "
            "dp-fedmed"
        )
    return fold(records)


def open_ledger(run_dir: Path) -> tuple[Ledger, MacKey]:
    """A run's ledger, checked to its last record.

    Raises:
        LedgerError: if it or its key is missing, or it was changed.
    """
    path, key_file = run_dir / LEDGER_FILE, run_dir / SECRET_FOLDER / LEDGER_KEY_FILE
    begun = any(run_dir.glob("round_*")) or (run_dir / RELEASES).exists()
    if not path.exists() and not begun:
        raise LedgerError(f"{path} is missing: no run has begun here; start it anew elsewhere")
    try:
        key = MacKey.load(key_file)
    except FileNotFoundError:
        raise LedgerError(
            f"{key_file} is missing, so the ledger cannot be checked: restore it"
        ) from None
    except (ValueError, OSError) as error:
        raise LedgerError(str(error)) from None
    if not path.exists():
        raise LedgerError(f"{path} is missing, so what was spent is unknown: restore it")
    return Ledger(path, key), key


def read_plan(body: Mapping[str, Any]) -> PrivacyPlan | None:
    """The plan of a PHASE record."""
    return None if body["plan"] is None else PrivacyPlan.from_json(body["plan"])
