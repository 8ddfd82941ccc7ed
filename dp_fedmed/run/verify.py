"""What a run has spent, from its ledger alone; and whether the rest of its directory agrees."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dp_fedmed.config import from_yaml
from dp_fedmed.errors import CheckpointError, LedgerError
from dp_fedmed.federation.charges import Charge
from dp_fedmed.federation.plan import PrivacyPlan
from dp_fedmed.federation.run_account import RunAccount
from dp_fedmed.privacy import PrivacyEvent
from dp_fedmed.privacy.accounting.events import Level
from dp_fedmed.privacy.ledger import Ledger, Record
from dp_fedmed.privacy.streams.keys import MacKey
from dp_fedmed.run.checkpoint import CheckpointStore, folder_name
from dp_fedmed.run.directory import CONFIG_FILE, REPORT_FILE
from dp_fedmed.run.phases import limits_of
from dp_fedmed.run.resume import client_ledgers
from dp_fedmed.run.spent import CHARGE, history_of, open_ledger


@dataclass(frozen=True)
class Line:
    """One record as it may be shown: nothing about who took part, no digest."""

    record: Record
    what: str
    sample_epsilon: float | None = None
    user_epsilon: float | None = None


class LedgerView:
    """A run's ledger, checked, with ε recomputed from it.

    Raises:
        LedgerError: if it cannot be trusted.
    """

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir
        self.ledger, self.key = open_ledger(run_dir)
        self.history = history_of(self.ledger)
        self.config = from_yaml(self.history.configs[-1], run_dir)
        self.hidden = self.config.privacy.style.protects_clients
        self.plan: PrivacyPlan | None = self.history.plans.get(self.history.phase)
        self.account = self._new_account()
        if self.account is not None:
            for charge in self.history.charges:
                self.account.record(charge)

    def _new_account(self) -> RunAccount | None:
        if self.plan is None:
            return None
        past = {number: plan for number, plan in self.history.plans.items() if plan is not None}
        return RunAccount(limits_of(self.config), self.plan, past, self.history.phase)

    def epsilons(self) -> dict[str, float]:
        """Realised ε by level; record level is the worst client's."""
        return {} if self.account is None else self.account.epsilons()

    def shown_epsilons(self) -> dict[str, float]:
        """ε by level as it may be shown: with secret cohorts, the planned worst case."""
        return {} if self.account is None else self.account.published_epsilons()

    @property
    def open_round(self) -> int | None:
        """The round that was charged and not committed, as a crash leaves it; None without one."""
        return self.history.open_round

    @property
    def open_words(self) -> str:
        """What to do about an open round."""
        return (
            f"round {self.open_round} is open: it is paid for, and the run stopped before its "
            f"checkpoint was written; {self.path / REPORT_FILE} does not count it yet. Finish it, "
            f"at no further cost, with: dp-fedmed resume {self.path}"
        )

    def lines(self) -> Iterator[Line]:
        """Every record in words; ε after each charge, where it tells nothing of cohorts."""
        account, charges = self._new_account(), iter(self.history.charges)
        for record in self.ledger.records:
            if record.kind != CHARGE or account is None or self.plan is None:
                yield Line(record, _in_words(record))
                continue
            charge = next(charges)
            account.record(charge)
            spent = account.published_epsilons(exact=False)
            sample, user = spent.get(Level.sample), spent.get(Level.user)
            shown = charge.clients
            if self.hidden and not charge.again:  # as planned for all: a span would tell who came
                plan = self.history.plans.get(charge.phase) or self.plan
                shown = {name: own.round_event for name, own in plan.clients.items()}
            yield Line(record, _charge_in_words(charge, shown, self.hidden), sample, user)

    def problems(self) -> Iterator[str]:
        """What in the run directory does not agree with the ledger, a sentence each."""
        yield from self._checkpoint_problems()
        file = self.path / CONFIG_FILE
        if not file.exists() or file.read_text(errors="replace") not in self.history.configs:
            yield f"{file} is not what the ledger says"
        yield from self._client_problems()
        yield from self._report_problems()

    def _checkpoint_problems(self) -> Iterator[str]:
        store = CheckpointStore(self.path)
        try:
            heads = store.heads()
        except CheckpointError as error:
            yield str(error)
            return
        for file, head in heads.items():
            if not self.ledger.holds(head):
                yield f"{self.ledger.path} is shorter than {file} says it was, or another run's"
        if self.history.round >= 0 and self.history.round not in store.rounds():
            yield f"{self.path / folder_name(self.history.round)} is missing"
        for server_round in store.rounds():
            digest = self.history.committed.get(server_round)
            if digest is not None:
                try:
                    store.read(server_round, digest)
                except CheckpointError as error:
                    yield str(error)

    def _client_problems(self) -> Iterator[str]:
        """Each simulated client's own ledger; a deployed one's is at its site."""
        for file in client_ledgers(self.path):
            try:
                Ledger(file, MacKey.derive(self.key, "client", file.stem))
            except LedgerError as error:
                yield str(error)

    def _report_problems(self) -> Iterator[str]:
        """The published ε may be larger (a worst case), never smaller."""
        file, spent = self.path / REPORT_FILE, self.epsilons()
        if self.open_round is not None:  # a report is written after its round
            yield self.open_words
            return
        if not spent or not file.exists():
            return
        try:
            report = json.loads(file.read_text(encoding="utf-8"))
            reported = {g["unit"]: float(g["epsilon"]) for g in report["guarantees"]}
        except (ValueError, KeyError, TypeError):
            yield f"{file} cannot be read"
            return
        for level in Level:
            unit = level.unit
            if level in spent and reported.get(unit, 0.0) < spent[level] * (1 - 1e-12):
                yield (
                    f"{file} reports ε={reported.get(unit)} for one {unit}, the ledger gives "
                    f"{spent[level]}"
                )


def _charge_in_words(charge: Charge, clients: Mapping[str, PrivacyEvent], hidden: bool) -> str:
    parts = []
    if charge.federation is not None:
        event = charge.federation
        q = f", q={event.sample_rate:g}" if event.sample_rate is not None else ""
        parts.append(f"clients: σ={event.noise_multiplier:.4g}{q}")
    if clients:
        sigmas = sorted({event.noise_multiplier for event in clients.values()})
        span = f"σ={sigmas[0]:.4g}" + (f"…{sigmas[-1]:.4g}" if len(sigmas) > 1 else "")
        parts.append(f"records: {span}" + ("" if hidden else f", {len(clients)} clients"))
    again = "again, " if charge.again else ""
    return again + ("; ".join(parts) or "nobody")


def _in_words(record: Record) -> str:
    body: dict[str, Any] = dict(record.body)
    return {
        "OPEN": "the run begins",
        "CONFIG": "settings changed",
        "PHASE": f"phase {body.get('phase')} begins",
        "REWIND": f"back to round {body.get('round')}; what was spent stays spent",
        "RELEASE": "a noised sum is on disk",
        "COMMIT": "checkpoint is on disk",
        "CLOSE": f"the run ends: {body.get('reason')}",
    }.get(record.kind, record.kind)
