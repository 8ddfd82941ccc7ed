"""What the ledger says about rounds: charged before, released while, committed after.

It also finds what a crash left behind, so that a round that is done again is paid for once if it
is the same, and again if it is not.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from dp_fedmed.crash_points import crash_point
from dp_fedmed.errors import LedgerError
from dp_fedmed.federation.charges import Charge, RoundKey, StoredRelease
from dp_fedmed.privacy import PrivacyEvent
from dp_fedmed.privacy.files import write_file
from dp_fedmed.privacy.ledger import Ledger
from dp_fedmed.privacy.streams.keys import MacKey, array_digest, length_prefixed
from dp_fedmed.run.data_ledger import DataLedger
from dp_fedmed.run.durable import sweep
from dp_fedmed.run.spent import CHARGE, COMMIT, RELEASE, fold

State = dict[str, np.ndarray[Any, Any]]


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
        history = fold(ledger.records)
        for charge in history.charges:
            self._add(charge)
        self._released, self._committed = history.released, history.last_commit
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

    @property
    def length(self) -> int:
        """Records of the ledger so far; it only grows."""
        return len(self.ledger.records)

    def release(self, inputs: str, average: State, state: Mapping[str, float]) -> None:
        """Make a noised average durable, and write it down, before anybody uses it.

        Args:
            inputs: keyed digest of the exact sum.
            average: what is released.
            state: the mechanism's, for the next round.
        """
        charge = self.current
        if charge is None:
            raise LedgerError("a release needs a charge before it")
        result = _result(average)
        sealed = {"charge": str(charge.number), "inputs": inputs, "state": json.dumps(dict(state))}
        metadata = {**sealed, "seal": self._seal(sealed, result)}
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
            last = "state" if "state" in metadata else "clip_norm"  # as 0.1 wrote it
            sealed = {key: metadata[key] for key in ("charge", "inputs", last)}
            is_ours = hmac.compare_digest(metadata["seal"], self._seal(sealed, result))
            if not is_ours or sealed["charge"] != str(charge.number):
                raise ValueError
            state = json.loads(sealed[last])
            if last == "clip_norm":
                state = {last: float(state)}
            return StoredRelease(average, state), sealed["inputs"], result
        except (SafetensorError, ValueError, KeyError, TypeError):
            raise LedgerError(f"{file} was changed or damaged: restore it") from None

    def _seal(self, sealed: Mapping[str, str], result: str) -> str:
        fields = [b"dp_fedmed release v1", *(v.encode() for v in sealed.values()), result.encode()]
        return self._key.mac(length_prefixed(fields)).hex()

    @staticmethod
    def _metadata(content: bytes) -> dict[str, str]:
        size = int.from_bytes(content[:8], "little")
        return dict(json.loads(content[8 : 8 + size])["__metadata__"])


def _result(average: Mapping[str, np.ndarray[Any, Any]]) -> str:
    """The hash of a noised average, in name order: safetensors keeps no other."""
    return array_digest(average[name] for name in sorted(average)).hex()
