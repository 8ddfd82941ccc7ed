"""How a run ended, and what of a round may be shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dp_fedmed.config import Config, better
from dp_fedmed.federation.rounds import RoundRecord
from dp_fedmed.learning.fairness import fairness
from dp_fedmed.privacy.accounting.events import Level
from dp_fedmed.privacy.mechanisms.base import ServerMechanism
from dp_fedmed.run.participation import Participation

COMPLETED, INTERRUPTED, BUDGET = "completed", "interrupted", "budget"


@dataclass
class RunResult:
    """How a run ended.

    Attributes:
        run_dir: its directory.
        stopped: `completed`, or why it ended early.
        rounds: that are done.
        selected_round: whose model is the final one.
        val: its validation metrics.
        test: its test metrics.
        clients: metrics at clients, by name, of the last round that has any.
        seconds: of this part of the run.
        participation: who contributed how often, where that is no secret.
    """

    run_dir: Path
    stopped: str = COMPLETED
    rounds: int = 0
    selected_round: int = 0
    val: dict[str, float] = field(default_factory=dict)
    test: dict[str, float] = field(default_factory=dict)
    clients: dict[str, dict[str, float]] = field(default_factory=dict)
    seconds: float = 0.0
    participation: Participation | None = None


def public_record(record: RoundRecord, epsilons: dict[str, float]) -> RoundRecord:
    """A round as it may be shown in a private style: no cohort, no client's loss or failure."""
    return RoundRecord(
        server_round=record.server_round,
        server_metrics=record.server_metrics,
        seconds=record.seconds,
        epsilons=epsilons,
    )


def describe_budget(config: Config, epsilons: dict[str, float], left: int | None) -> str:
    """One line on what is spent and what is left."""
    parts = []
    for level, spent in epsilons.items():
        settings = config.privacy.sample if level == Level.sample else config.privacy.user
        target = settings.target_epsilon
        parts.append(f"ε_{level} {spent:.3f}" + (f" of {target:g}" if target else ""))
    if left is not None:
        parts.append(f"{left} rounds left in the budget")
    return ", ".join(parts)


def fairness_of(record: RoundRecord, metric: str) -> dict[str, float]:
    """How evenly the task's metric is spread over clients."""
    values = [own[metric] for own in record.client_metrics.values() if metric in own]
    return fairness(values, sign=better(metric))


def mechanism_state(mechanism: ServerMechanism | None) -> dict[str, Any]:
    """What a checkpoint holds of a mechanism: C by its old name, and anything else beside it."""
    state = {} if mechanism is None else mechanism.state()
    more = {"mechanism": state} if state.keys() - {"clip_norm"} else {}
    return {"clip_norm": state.get("clip_norm"), **more}
