"""What all runs together have spent on the same data: one file that they share.

A record may be at one client in one run and at another in the next, so each run counts with its
worst client, and the worst clients of all runs compose. A run counts for a unit that it does not
protect too: a client has no bound at all once a run protects records only, and a record in a run
that protects clients only is worth what a client that is replaced is.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dp_fedmed.errors import LedgerError
from dp_fedmed.federation.charges import from_entries, to_entries
from dp_fedmed.privacy import History, PrivacyEvent, chained_epsilon
from dp_fedmed.privacy.accounting.rdp import ORDERS, rdp_to_epsilon, sampled_gaussian_rdp
from dp_fedmed.privacy.accounting.rdp import without_replacement_rdp as fixed_size_rdp
from dp_fedmed.privacy.ledger import Head, Ledger
from dp_fedmed.privacy.streams.keys import MacKey

OPEN, SPENT = "OPEN", "SPENT"


@dataclass
class RunSpending:
    """One run's part: RDP of each client's records, and what the client level went through."""

    clients: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    federation: History = field(default_factory=History)
    neighbours: set[str] = field(default_factory=set)

    def add(self, body: Mapping[str, Any]) -> None:
        """Count one SPENT record in."""
        if body["federation"] is not None:
            event = PrivacyEvent.from_json(body["federation"])
            self.federation.add(event)
            self.neighbours.add(event.adjacency)
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
        self.refuse_other_neighbours(federation)
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

    def refuse_other_neighbours(self, federation: PrivacyEvent | None) -> None:
        """Refuse a client-level event that does not compose with those of other runs.

        Raises:
            LedgerError: naming the setting.
        """
        if federation is None:
            return
        self._catch_up()
        held = {name for run in self._runs.values() for name in run.neighbours}
        if held - {federation.adjacency}:
            raise LedgerError(
                f"federation.sampler states this run's guarantee for {federation.adjacency} "
                f"neighbours, and other runs on data.id={self.data_id} theirs for "
                f"{', '.join(sorted(held))}: the two do not compose; use the sampler of those runs"
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
        records_only = sum(bool(run.clients) and not run.federation for run in runs)
        federation = History().plus(*(run.federation for run in runs))
        return {
            "data_id": self.data_id,
            "runs": len(runs),
            "record": _for_a_record(runs, delta_record),
            "client": None if records_only else _client_epsilon(federation, delta_client),
            "unbounded": {"client": records_only} if records_only and federation else {},
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


def _for_a_record(runs: Sequence[RunSpending], delta: float) -> dict[str, float] | None:
    """ε of one record, if any run protects records at all.

    Changing a record changes its client: in runs that protect clients only, the client goes and
    comes back, which is a group of two. Both parts get half of δ and add up.
    """
    protecting = [run for run in runs if run.clients]
    if not protecting:
        return None
    rdp = sum((run.records for run in protecting), np.zeros(len(ORDERS)))
    within = History().plus(*(run.federation for run in runs if not run.clients))
    if not within:
        return {"epsilon": rdp_to_epsilon(rdp, delta=delta)[0], "delta": delta}
    epsilon = rdp_to_epsilon(rdp, delta=delta / 2)[0]
    return {"epsilon": epsilon + chained_epsilon(within, size=2, delta=delta / 2), "delta": delta}


def _client_epsilon(federation: History, delta: float) -> dict[str, float] | None:
    return {"epsilon": federation.epsilon(delta=delta), "delta": delta} if federation else None


def _rdp(event: PrivacyEvent) -> np.ndarray[Any, Any]:
    kind, sigma, q = event.key
    vector = sampled_gaussian_rdp if kind == "poisson" else fixed_size_rdp
    return event.count * vector(noise_multiplier=sigma, sample_rate=q)
