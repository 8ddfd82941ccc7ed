"""What all runs together have spent on the same data: one file that they share.

A record may be at one client in one run and at another in the next, so each run counts with its
worst client, and the worst clients of all runs compose.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dp_fedmed.federation.shared_events import from_entries, to_entries
from dp_fedmed.privacy import PrivacyEvent
from dp_fedmed.privacy.keys import MacKey
from dp_fedmed.privacy.ledger import Head, Ledger, LedgerError
from dp_fedmed.privacy.rdp import ORDERS, rdp_to_epsilon, sampled_gaussian_rdp
from dp_fedmed.privacy.rdp import without_replacement_rdp as fixed_size_rdp

OPEN, SPENT = "OPEN", "SPENT"


@dataclass
class RunSpending:
    """One run's part: RDP of each client's records, and of the client level."""

    clients: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    federation: np.ndarray[Any, Any] = field(default_factory=lambda: np.zeros(len(ORDERS)))

    def add(self, body: Mapping[str, Any]) -> None:
        """Count one SPENT record in."""
        if body["federation"] is not None:
            self.federation = self.federation + _rdp(PrivacyEvent.from_json(body["federation"]))
        for name, event in from_entries(body["clients"]).items():
            self.clients[name] = self.clients.get(name, np.zeros(len(ORDERS))) + _rdp(event)

    @property
    def records(self) -> np.ndarray[Any, Any]:
        """The worst client at each order; events of every client are in each of them."""
        if not self.clients:
            return np.zeros(len(ORDERS))
        return np.asarray(np.max(np.stack(list(self.clients.values())), axis=0))


class DataLedger:
    """The shared ledger, as one run sees it.

    Args:
        path: the file; its key lies beside it, for its owner only.
        data_id: the name of the data in all runs that use them.
        run: this run's id.

    Raises:
        LedgerError: if the file or its key is missing or was changed.
    """

    def __init__(self, path: Path, *, data_id: str, run: str) -> None:
        self.data_id, self.run = data_id, run
        self.ledger = open_data_ledger(path)
        self._seen: dict[int, str] = {}  # hashes of this run's own charges, by their number
        self._runs: dict[str, RunSpending] = {}  # what each run spent on the same data
        self._read = 0

    def note(
        self,
        head: Head,
        federation: PrivacyEvent | None,
        clients: Mapping[str, PrivacyEvent],
    ) -> None:
        """Write down a charge of this run, once.

        Args:
            head: the run's own ledger at the charge.
            federation: the client-level event.
            clients: record-level events by client.

        Raises:
            LedgerError: if the same run has already spent something else at this place: there are
                two copies of its directory.
        """
        self._catch_up()
        known = self._seen.get(head.number)
        if known is not None:
            if known != head.mac:
                raise LedgerError(
                    f"{self.ledger.path} knows another record {head.number} of this run: its "
                    "directory was copied, and the copy has gone on; continue that one"
                )
            return
        self.ledger.append(
            SPENT,
            {
                "data": self.data_id,
                "run": self.run,
                "number": head.number,
                "mac": head.mac,
                "federation": None if federation is None else federation.to_json(),
                "clients": to_entries(clients),
            },
        )

    def check(self, ledger: Ledger) -> None:
        """Refuse a run directory that is older than what this ledger has seen of it.

        Raises:
            LedgerError: naming the run's ledger.
        """
        self._catch_up()
        for number, mac in self._seen.items():
            if not ledger.holds(Head(number, mac)):
                raise LedgerError(
                    f"{ledger.path} lacks record {number}, which {self.ledger.path} has seen: the "
                    "run directory is an older copy; continue the newer one"
                )

    def _catch_up(self) -> None:
        """Take in what was added since the last look, by this run and by others."""
        self.ledger.refresh()
        for record in self.ledger.records[self._read :]:
            body = record.body
            if body.get("run") == self.run:
                self._seen[body["number"]] = body["mac"]
            if body.get("data") == self.data_id:
                self._runs.setdefault(body["run"], RunSpending()).add(body)
        self._read = len(self.ledger.records)

    def totals(
        self, *, delta_record: float, delta_client: float, planned: RunSpending | None = None
    ) -> dict[str, Any]:
        """ε of everything that all runs spent on this data, and of one more that is planned."""
        self._catch_up()
        runs = [*self._runs.values(), *([] if planned is None else [planned])]
        records = sum((run.records for run in runs), np.zeros(len(ORDERS)))
        federation = sum((run.federation for run in runs), np.zeros(len(ORDERS)))
        return {
            "data_id": self.data_id,
            "runs": len(runs),
            "record": _epsilon(records, delta_record),
            "client": _epsilon(federation, delta_client),
            "note": (
                "each run counts with its worst client, since a record may be at another client in "
                "another run"
            ),
        }


def open_data_ledger(path: Path) -> Ledger:
    """The ledger at a path, made with a new key if neither is there."""
    key_file = path.with_name(f"{path.name}.key")
    path.parent.mkdir(parents=True, exist_ok=True)
    if not key_file.exists():
        if path.exists():
            raise LedgerError(f"{key_file} is missing, so {path} cannot be checked: restore it")
        with contextlib.suppress(FileExistsError):  # another run of a sweep may be faster
            Ledger(path, MacKey.create(key_file)).append(OPEN, {})
    deadline = time.monotonic() + 2.0
    while not path.exists():
        if time.monotonic() > deadline:
            raise LedgerError(
                f"{path} is missing, though {key_file} is there: restore it (or remove the key, if "
                "no run has used it yet)"
            )
        time.sleep(0.01)
    try:
        return Ledger(path, MacKey.load(key_file))
    except (ValueError, PermissionError) as error:
        raise LedgerError(str(error)) from None


def _rdp(event: PrivacyEvent) -> np.ndarray[Any, Any]:
    kind, sigma, q = event.key
    vector = sampled_gaussian_rdp if kind == "poisson" else fixed_size_rdp
    return event.count * vector(noise_multiplier=sigma, sample_rate=q)


def _epsilon(rdp: np.ndarray[Any, Any], delta: float) -> dict[str, float] | None:
    if not rdp.any():
        return None
    return {"epsilon": rdp_to_epsilon(rdp, delta=delta)[0], "delta": delta}
