"""What one client knows that it has spent: a file of its own, which no server can shorten."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dp_fedmed.tasks.dp_sgd import DPSGDPlan


class ClientLedger:
    """An append-only list of the rounds in which this client trained."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / f"{name}.jsonl"

    def charge(self, server_round: int, plan: DPSGDPlan) -> None:
        """Write down a round before it is trained."""
        self.path.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
        row = {
            "round": server_round,
            "noise_multiplier": plan.noise_multiplier,
            "sample_rate": plan.sample_rate,
            "steps": plan.steps,
        }
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        with os.fdopen(os.open(self.path, flags, 0o600), "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def rows(self) -> list[dict[str, Any]]:
        """Every round so far."""
        if not self.path.exists():
            return []
        return [json.loads(line) for line in self.path.read_text(encoding="utf-8").splitlines()]

    def total_steps(self) -> int:
        """Noisy steps over all rounds."""
        return sum(int(row["steps"]) for row in self.rows())
