"""What one client knows that it has spent: a ledger of its own, which no server can shorten."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from dp_fedmed.privacy import History, PrivacyEvent
from dp_fedmed.privacy.composition import Method
from dp_fedmed.privacy.keys import MacKey
from dp_fedmed.privacy.ledger import Ledger

CHARGE, ANSWER = "CHARGE", "ANSWER"


class BudgetRefused(RuntimeError):
    """The server asks for more than this client's own budget allows."""


class ServerRefused(RuntimeError):
    """The server asks for something that a server in good order would not."""


class RecordPlan(Protocol):
    """What a client's records are charged with in one round."""

    @property
    def noise_multiplier(self) -> float:
        """σ of each step."""

    @property
    def sample_rate(self) -> float:
        """Q of each step."""

    @property
    def steps(self) -> int:
        """Noised sums of the round."""

    @property
    def in_force(self) -> dict[str, float | str]:
        """What the round's secret streams depend on."""


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

    def is_same(self, row: dict[str, Any]) -> bool:
        """Whether a row of the ledger is about this very round."""
        return all(row[k] == getattr(self, k) for k in ("run", "phase", "server_round", "digest"))


@dataclass(frozen=True)
class Budget:
    """What a client is willing to spend in a run; no limit where ε is None."""

    epsilon: float | None
    delta: float
    method: Method


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

    def charge(self, asked: Asked, plan: RecordPlan, budget: Budget) -> None:
        """Write down a round before it is trained; a round that is repeated is written once.

        Raises:
            BudgetRefused: if this run's rounds, with this one, exceed the budget; a server cannot
                have it by asking for less noise or for more rounds.
            ServerRefused: if the server's ledger went back, or the records are not those of the
                run's earlier rounds.
        """
        self.ledger.refresh()
        if any(asked.is_same(row) for row in self._rows(CHARGE)):
            return
        for row in self._rows(CHARGE, asked.run):
            if row["ledger"] >= asked.ledger:
                raise ServerRefused(
                    f"the server's ledger went back: it is at record {asked.ledger}, and was at "
                    f"{row['ledger']} when it asked before"
                )
            if row["phase"] == asked.phase and row["data"] != asked.data:
                raise ServerRefused(
                    "this client's records have changed since the run began: begin a new phase"
                )
        self._pay(asked, plan, budget)

    def answer(self, asked: Asked, plan: RecordPlan, budget: Budget, reply: str) -> int:
        """Write down an answer before it is sent; returns how often its round was paid for.

        An answer that differs from the one this round had before is a second release, so it is
        paid for again, before it is sent.

        Args:
            asked: the round.
            plan: what was computed.
            budget: this client's own.
            reply: keyed digest of the answer.
        """
        before = [row["reply"] for row in self._rows(ANSWER) if asked.is_same(row)]
        if reply not in before:
            paid = sum(1 for row in self._rows(CHARGE) if asked.is_same(row))
            if paid <= len(before):
                self._pay(asked, plan, budget)
            self.ledger.append(ANSWER, {**asdict(asked), "reply": reply})
        return sum(1 for row in self._rows(CHARGE) if asked.is_same(row))

    def _pay(self, asked: Asked, plan: RecordPlan, budget: Budget) -> None:
        row = {
            **asdict(asked),
            "noise_multiplier": plan.noise_multiplier,
            "sample_rate": plan.sample_rate,
            "steps": plan.steps,
        }
        if budget.epsilon is not None:
            events = [_event(r) for r in [*self._rows(CHARGE, asked.run), row]]
            spent = History(events).epsilon(delta=budget.delta, method=budget.method)
            if spent > budget.epsilon * (1 + 1e-9):
                raise BudgetRefused(f"round {asked.server_round} would exceed this client's budget")
        self.ledger.append(CHARGE, row)

    def _rows(self, kind: str, run: str | None = None) -> Iterable[dict[str, Any]]:
        for record in self.ledger.records:
            if record.kind == kind and (run is None or record.body["run"] == run):
                yield dict(record.body)


def _event(row: dict[str, Any]) -> PrivacyEvent:
    return PrivacyEvent.poisson(
        unit="record",
        noise_multiplier=row["noise_multiplier"],
        sample_rate=row["sample_rate"],
        count=row["steps"],
    )
