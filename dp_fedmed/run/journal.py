"""What the ledger says about rounds: charged before, released while, committed after.

It also finds what a crash left behind, so that a round that is done again is paid for once if it
is the same, and again if it is not.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from dp_fedmed.crash_points import crash_point
from dp_fedmed.errors import LedgerError
from dp_fedmed.privacy import PrivacyEvent
from dp_fedmed.privacy.ledger import Ledger, Record
from dp_fedmed.privacy.streams.digests import array_digest, length_prefixed
from dp_fedmed.privacy.streams.keys import MacKey
from dp_fedmed.run.data_ledger import DataLedger
from dp_fedmed.run.durable import sweep, write_file
from dp_fedmed.run.shared_events import from_entries, to_entries

OPEN, CONFIG, PHASE, REWIND, CLOSE = "OPEN", "CONFIG", "PHASE", "REWIND", "CLOSE"
CHARGE, RELEASE, COMMIT = "CHARGE", "RELEASE", "COMMIT"

State = dict[str, np.ndarray[Any, Any]]
RoundKey = tuple[int, int, str]


@dataclass(frozen=True, kw_only=True)
class Charge:
    """What a round may cost, written down before it is dispatched.

    Attributes:
        phase: the stretch of the run in which settings and plan stay the same.
        server_round: the round.
        digest: of the model sent and the settings in force; the same round done again has the same.
        cohort: who takes part.
        federation: the client-level event.
        clients: the record-level event of each client of the cohort.
        again: something in the round differed from the last time, so that it is paid for twice.
        number: of its record in the ledger.
    """

    phase: int
    server_round: int
    digest: str
    cohort: list[str]
    federation: PrivacyEvent | None = None
    clients: Mapping[str, PrivacyEvent] = field(default_factory=dict)
    again: bool = False
    number: int = -1

    @property
    def key(self) -> RoundKey:
        """What makes two charges the same round."""
        return self.phase, self.server_round, self.digest

    def body(self) -> dict[str, Any]:
        """As it stands in the ledger."""
        return {
            "phase": self.phase,
            "round": self.server_round,
            "digest": self.digest,
            "cohort": list(self.cohort),
            "federation": None if self.federation is None else self.federation.to_json(),
            "clients": to_entries(self.clients),
            "again": self.again,
        }

    @classmethod
    def from_record(cls, record: Record) -> Charge:
        """Read a CHARGE record back."""
        body = record.body
        federation = body["federation"]
        return cls(
            phase=body["phase"],
            server_round=body["round"],
            digest=body["digest"],
            cohort=list(body["cohort"]),
            federation=None if federation is None else PrivacyEvent.from_json(federation),
            clients=from_entries(body["clients"]),
            again=body["again"],
            number=record.number,
        )


@dataclass(frozen=True)
class StoredRelease:
    """A noised average, and the clipping norm that holds after it."""

    average: State
    clip_norm: float


class Journal:
    """The rounds of a run's ledger.

    Args:
        ledger: the run's ledger.
        key: seals releases, so that a changed file is noticed.
        folder: where releases are kept while a checkpoint before them is.
        phase: the phase that new charges belong to.
        data_ledger: also told of every charge, if the run shares one.
    """

    def __init__(
        self,
        ledger: Ledger,
        key: MacKey,
        folder: Path,
        *,
        phase: int,
        data_ledger: DataLedger | None = None,
    ) -> None:
        self.ledger, self.folder, self.phase = ledger, folder, phase
        self._key, self._data_ledger = key, data_ledger
        self.charges: list[Charge] = []
        self._by_round: dict[RoundKey, list[Charge]] = {}
        #: What every client counts with in public, by phase, where who took part is secret.
        self.worst_case: dict[int, Mapping[str, PrivacyEvent]] = {}
        self._released: dict[int, Record] = {}
        self._committed = -1
        for record in ledger.records:
            if record.kind == CHARGE:
                self._add(Charge.from_record(record))
            elif record.kind == RELEASE:
                self._released[record.body["charge"]] = record
            elif record.kind == COMMIT:
                self._committed = record.number
        self.current: Charge | None = None

    def find(self, server_round: int, digest: str) -> Charge | None:
        """The charge of this very round, if it was made before: it need not be paid for again."""
        for charge in self._by_round.get((self.phase, server_round, digest), ()):
            if not charge.again:
                self.current = charge
                return charge
        return None

    def _add(self, charge: Charge) -> None:
        self.charges.append(charge)
        self._by_round.setdefault(charge.key, []).append(charge)

    def charge(self, charge: Charge) -> Charge:
        """Write a charge down, on disk before this returns."""
        crash_point("charge:before")
        record = self.ledger.append(CHARGE, charge.body())
        written = replace(charge, number=record.number)
        self._share(written)
        crash_point("charge:after")
        self._add(written)
        if not charge.again:
            self.current = written
        return written

    def share_all(self) -> None:
        """Tell the shared ledger of every charge; those that it knows are told once."""
        for charge in self.charges:
            self._share(charge)

    def _share(self, charge: Charge) -> None:
        if self._data_ledger is not None:
            clients = self._shown(charge)
            head = self.ledger.records[charge.number].head
            self._data_ledger.note(head, charge.federation, clients)

    def _shown(self, charge: Charge) -> Mapping[str, PrivacyEvent]:
        """Whom a charge is shown to concern: every client, where who took part is secret."""
        everyone = self.worst_case.get(charge.phase)
        if everyone is None:
            return charge.clients
        rounds = max((e.count // everyone[n].count for n, e in charge.clients.items()), default=1)
        return {name: event.times(rounds) for name, event in everyone.items()}

    def client_charges(self, name: str) -> int:
        """How often the current round was charged to a client's records."""
        tries = self._by_round.get(self.current.key, ()) if self.current is not None else ()
        own = [charge.clients[name].count for charge in tries if name in charge.clients]
        return sum(own) // own[0] if own else 0

    def stored(self) -> StoredRelease | None:
        """The release of the current round, if it was made before: it is never made again.

        Raises:
            LedgerError: if it is known but its file is missing or damaged.
        """
        charge = self.current
        if charge is None:
            return None
        file, record = self._file(charge), self._released.get(charge.number)
        if not file.exists():
            if record is not None:
                raise LedgerError(
                    f"{file} is missing, but round {charge.server_round} was released: restore it, "
                    "or continue as a new phase with new_phase=true"
                )
            return None
        release, inputs, result = self._load(file, charge)
        if record is None:
            self._append_release(charge, inputs, result)
        elif not hmac.compare_digest(record.body["result"], result):
            raise LedgerError(f"{file} is not what the ledger says was released")
        return release

    def release(self, inputs: str, average: State, clip_norm: float) -> None:
        """Make a noised average durable, and write it down, before anybody uses it.

        Args:
            inputs: keyed digest of the exact sum.
            average: what is released.
            clip_norm: C of the next round.
        """
        charge = self.current
        if charge is None:
            raise LedgerError("a release needs a charge before it")
        result = _result(average)
        told = {"charge": str(charge.number), "inputs": inputs, "clip_norm": repr(clip_norm)}
        metadata = {**told, "seal": self._seal(told, result)}
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        arrays = {name: np.ascontiguousarray(value) for name, value in average.items()}
        crash_point("release:before")
        write_file(self._file(charge), save(arrays, metadata=metadata), mode=0o600)
        crash_point("release:file")
        self._append_release(charge, inputs, result)
        crash_point("release:after")

    def commit(self, server_round: int, checkpoint: str, *, durable: bool = False) -> None:
        """Say that a round's checkpoint is durable; on disk with the next charge or commit.

        A power cut may lose this line; the round is then done again from what is on disk, to the
        same bytes. It saves one wait for the disk in every round.
        """
        crash_point("commit:before")
        body = {"phase": self.phase, "round": server_round, "checkpoint": checkpoint}
        head = self.ledger.durable_head
        waits = head is None or head.number < self._committed  # one may be lost, never two
        self._committed = self.ledger.append(COMMIT, body, durable=durable or waits).number
        crash_point("commit:after")

    def _append_release(self, charge: Charge, inputs: str, result: str) -> None:
        body = {
            "charge": charge.number,
            "phase": charge.phase,
            "round": charge.server_round,
            "inputs": inputs,
            "result": result,
        }
        self._released[charge.number] = self.ledger.append(RELEASE, body, durable=False)

    def forget_releases(self, oldest: int) -> None:
        """Delete releases that no kept checkpoint can come to again: those up to the oldest."""
        records = self.ledger.records
        sweep(f for f, number in self._files() if records[number].body["round"] <= oldest)

    def _files(self) -> list[tuple[Path, int]]:
        """Release files, with the numbers of their charges."""
        found = []
        for file in sorted(self.folder.glob("charge_*.safetensors")):
            digits = file.stem.removeprefix("charge_")
            if digits.isdecimal():
                found.append((file, int(digits)))
        return found

    def check_files(self) -> None:
        """Refuse a ledger that is older than the releases beside it.

        Raises:
            LedgerError: naming the file.
        """
        known = {charge.number for charge in self.charges}
        for file, number in self._files():
            if number not in known:
                raise LedgerError(
                    f"{self.ledger.path} is shorter than {file} says it was: restore it"
                )

    def _file(self, charge: Charge) -> Path:
        return self.folder / f"charge_{charge.number:06d}.safetensors"

    def _load(self, file: Path, charge: Charge) -> tuple[StoredRelease, str, str]:
        content = file.read_bytes()
        try:
            metadata = self._metadata(content)
            average = load(content)
            result = _result(average)
            told = {key: metadata[key] for key in ("charge", "inputs", "clip_norm")}
            sealed = hmac.compare_digest(metadata["seal"], self._seal(told, result))
            if not sealed or told["charge"] != str(charge.number):
                raise ValueError
            return StoredRelease(average, float(told["clip_norm"])), told["inputs"], result
        except (SafetensorError, ValueError, KeyError, TypeError):
            raise LedgerError(f"{file} was changed or damaged: restore it") from None

    def _seal(self, told: Mapping[str, str], result: str) -> str:
        fields = [b"dp_fedmed release v1", *(v.encode() for v in told.values()), result.encode()]
        return self._key.mac(length_prefixed(fields)).hex()

    @staticmethod
    def _metadata(content: bytes) -> dict[str, str]:
        size = int.from_bytes(content[:8], "little")
        return dict(json.loads(content[8 : 8 + size])["__metadata__"])


def _result(average: Mapping[str, np.ndarray[Any, Any]]) -> str:
    """The hash of a noised average, in name order: safetensors keeps no other."""
    return array_digest(average[name] for name in sorted(average)).hex()


def inputs_digest(private_digest: bytes) -> str:
    """A keyed digest as the ledger holds it: hashed once more, since streams use it as it is."""
    return hashlib.sha256(b"dp_fedmed ledger inputs v1" + private_digest).hexdigest()
