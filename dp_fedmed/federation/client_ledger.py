"""What one client knows that it has spent: a file of its own, which no server can shorten."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dp_fedmed.privacy import History, PrivacyEvent
from dp_fedmed.privacy.composition import Method

if TYPE_CHECKING:
    from dp_fedmed.tasks.dp_sgd import DPSGDPlan


class BudgetRefused(RuntimeError):
    """The server asks for more than this client's own budget allows."""


class ClientLedger:
    """An append-only list of the rounds in which this client trained, run by run."""

    def __init__(self, folder: Path, name: str, run: str) -> None:
        self.path, self.run = folder / f"{name}.jsonl", run

    def charge(
        self,
        server_round: int,
        plan: DPSGDPlan,
        *,
        budget: float | None,
        delta: float,
        method: Method,
    ) -> None:
        """Write down a round before it is trained.

        Raises:
            BudgetRefused: if this run's rounds, with this one, exceed the budget at δ; a server
                cannot have it by asking for less noise or for more rounds.
        """
        row = {
            "run": self.run,
            "round": server_round,
            "noise_multiplier": plan.noise_multiplier,
            "sample_rate": plan.sample_rate,
            "steps": plan.steps,
        }
        if budget is not None and self._epsilon_with(row, delta, method) > budget * (1 + 1e-9):
            raise BudgetRefused(f"round {server_round} would exceed this client's budget")
        self.path.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        with os.fdopen(os.open(self.path, flags, 0o600), "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def _epsilon_with(self, row: dict[str, Any], delta: float, method: Method) -> float:
        events = [_event(r) for r in [*self.rows(), row] if r["run"] == self.run]
        return History(events).epsilon(delta=delta, method=method)

    def rows(self) -> list[dict[str, Any]]:
        """Every round so far, of every run."""
        if not self.path.exists():
            return []
        return [json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines()]


def _event(row: dict[str, Any]) -> PrivacyEvent:
    return PrivacyEvent.poisson(
        unit="record",
        noise_multiplier=row["noise_multiplier"],
        sample_rate=row["sample_rate"],
        count=row["steps"],
    )
