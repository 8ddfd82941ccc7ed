"""What one client knows that it has spent: a ledger of its own, which no server can shorten."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dp_fedmed.errors import BudgetRefused, ServerRefused
from dp_fedmed.privacy import History, PrivacyEvent, mixed_epsilon
from dp_fedmed.privacy.accounting.events import record_event
from dp_fedmed.privacy.accounting.history import Method, quickest_first
from dp_fedmed.privacy.ledger import Ledger
from dp_fedmed.privacy.mechanisms.base import Mechanism
from dp_fedmed.privacy.streams.keys import MacKey

CHARGE, ANSWER = "CHARGE", "ANSWER"

RoundKey = tuple[str, int, int, str]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A round as the server asks for it.

    Attributes:
        run: the run's id.
        phase: the stretch of the run with the same settings and data.
        server_round: the round.
        ledger: how far the server's ledger has come; it only grows.
        digest: of the model received and the settings in force.
        data: keyed digest of this client's records.
    """

    run: str
    phase: int
    server_round: int
    ledger: int
    digest: str
    data: str

    @property
    def key(self) -> RoundKey:
        """What makes two questions the same round."""
        return self.run, self.phase, self.server_round, self.digest


@dataclass(frozen=True)
class Budget:
    """What a client is willing to spend in a run, and in all; no limit where an ε is None."""

    epsilon: float | None
    delta: float
    method: Method
    all_runs_epsilon: float | None = None
    all_runs_delta: float = 1e-5


@dataclass
class _Spending:
    """Rounds by neighbouring relation, which must be one before they compose."""

    removed: History = field(default_factory=History)
    replaced: History = field(default_factory=History)

    def add(self, event: PrivacyEvent) -> None:
        """Count a round in; a record that is added or removed, or contributes or not, is alike."""
        (self.replaced if event.adjacency == "replace_one" else self.removed).add(event)

    def within(self, event: PrivacyEvent, most: float, delta: float, method: Method) -> bool:
        """Whether one more round fits."""
        after = _Spending(self.removed.plus(), self.replaced.plus())
        after.add(event)
        return any(
            mixed_epsilon(after.removed, after.replaced, delta=delta, method=each)
            <= most * (1 + 1e-9)
            for each in quickest_first(method)
        )


@dataclass
class _Run:
    """What this client did in one run: kept up to date, so that a round costs no search."""

    ledger: int = -1  # the furthest that the server's ledger was seen
    data: dict[int, str] = field(default_factory=dict)  # digest of the records, by phase
    spent: _Spending = field(default_factory=_Spending)


class ClientLedger:
    """An append-only list of the rounds in which this client trained, run by run.

    Args:
        folder: the client's own; made if needed.
        name: the client's.
        key: chains the records.
        durable: wait for the disk; a simulated client leaves that to the run's own ledger.
    """

    def __init__(self, folder: Path, name: str, key: MacKey, *, durable: bool) -> None:
        folder.mkdir(parents=True, mode=0o700, exist_ok=True)
        self.ledger = Ledger(folder / f"{name}.jsonl", key, durable=durable)
        self._runs: dict[str, _Run] = {}
        self._spent = _Spending()  # by all runs
        self._paid: Counter[RoundKey] = Counter()
        self._answers: dict[RoundKey, set[str]] = {}
        self._read = 0

    def charge(self, asked: Asked, mechanism: Mechanism, budget: Budget) -> None:
        """Write down a round before it is trained; a round that is repeated is written once.

        Raises:
            BudgetRefused: if this run's rounds, or those of all runs, exceed their budget with this
                one; a server cannot have it by asking for less noise, more rounds or a new run.
            ServerRefused: if the server's ledger went back, or the records are not those of the
                run's earlier rounds.
        """
        self.ledger.refresh()
        self._catch_up()
        if self._paid[asked.key]:
            return
        run = self._runs.get(asked.run, _Run())
        if run.ledger >= asked.ledger:
            raise ServerRefused(
                f"the server's ledger went back: it is at record {asked.ledger}, and was at "
                f"{run.ledger} when it asked before"
            )
        if run.data.get(asked.phase, asked.data) != asked.data:
            raise ServerRefused(
                "this client's records have changed since the run began: begin a new phase"
            )
        self._pay(asked, mechanism, budget)

    def refuse_new_run(self, run: str, mechanism: Mechanism, budget: Budget) -> None:
        """Refuse a run of which this client could not afford one round; one that it is in goes on.

        Raises:
            BudgetRefused: if the first round would exceed a budget.
        """
        self.ledger.refresh()
        self._catch_up()
        if run not in self._runs:
            self._refuse_excess(run, _event(_row(mechanism)), budget, 1)

    def answer(self, asked: Asked, mechanism: Mechanism, budget: Budget, reply: str) -> int:
        """Write down an answer before it is sent; returns how often its round was paid for.

        An answer that differs from the one this round had before is a second release, so it is
        paid for again, before it is sent.

        Args:
            asked: the round.
            mechanism: what protected it.
            budget: this client's own.
            reply: keyed digest of the answer.
        """
        before = self._answers.get(asked.key, set())
        if reply not in before:
            if self._paid[asked.key] <= len(before):
                self._pay(asked, mechanism, budget)
            self.ledger.append(ANSWER, {**asdict(asked), "reply": reply})
            self._catch_up()
        return self._paid[asked.key]

    def _pay(self, asked: Asked, mechanism: Mechanism, budget: Budget) -> None:
        row = {**asdict(asked), **_row(mechanism)}
        event = _event(row)  # what cannot be accounted for must not be written down either
        self._refuse_excess(asked.run, event, budget, asked.server_round)
        self.ledger.append(CHARGE, row)
        self._catch_up()

    def _refuse_excess(
        self, run: str, event: PrivacyEvent, budget: Budget, server_round: int
    ) -> None:
        here = self._runs.get(run, _Run()).spent
        for before, most, delta in (
            (here, budget.epsilon, budget.delta),
            (self._spent, budget.all_runs_epsilon, budget.all_runs_delta),
        ):
            if most is not None and not before.within(event, most, delta, budget.method):
                raise BudgetRefused(f"round {server_round} would exceed this client's budget")

    def _catch_up(self) -> None:
        """Take in the records that were added since the last look, by whichever process."""
        for record in self.ledger.records[self._read :]:
            row = record.body
            key = (row["run"], row["phase"], row["server_round"], row["digest"])
            if record.kind == ANSWER:
                self._answers.setdefault(key, set()).add(row["reply"])
                continue
            run = self._runs.setdefault(row["run"], _Run())
            run.ledger = max(run.ledger, row["ledger"])
            run.data.setdefault(row["phase"], row["data"])
            run.spent.add(_event(row))
            self._spent.add(_event(row))
            self._paid[key] += 1
        self._read = len(self.ledger.records)


def _row(mechanism: Mechanism) -> dict[str, Any]:
    """What one round costs, as the ledger holds it: so many sampled Gaussian steps."""
    (event,) = mechanism.cost(1)
    return {
        "noise_multiplier": event.noise_multiplier,
        "sample_rate": 1.0 if event.sample_rate is None else event.sample_rate,
        "steps": event.count,
        "adjacency": event.adjacency,
    }


def _event(row: Mapping[str, Any]) -> PrivacyEvent:
    return record_event(
        noise_multiplier=row["noise_multiplier"],
        sample_rate=row["sample_rate"],
        steps=row["steps"],
        adjacency=row.get("adjacency", "zero_out"),
    )
