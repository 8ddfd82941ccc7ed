"""How a run ended, and what of a round may be shown."""

from __future__ import annotations

import json
import platform
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from dp_fedmed.config import Config, better
from dp_fedmed.federation.rounds import RoundRecord
from dp_fedmed.learning import Evaluation
from dp_fedmed.learning.fairness import fairness
from dp_fedmed.privacy.accounting.events import Level
from dp_fedmed.privacy.mechanisms.base import ServerMechanism
from dp_fedmed.run.directory import EVALUATION_FILE, MODEL_FILE, PICTURES_FILE, RunDirectory
from dp_fedmed.run.observer import Observer

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


SCHEMA = 1
PARTICIPATION_FILE = "participation.json"
MOST_NAMED = 8


@dataclass(frozen=True)
class Participation:
    """Rounds in which each client was asked, and to which it contributed.

    Secret where cohorts are: then only `private/` has it, and no exit code or line depends on it.
    """

    asked: Mapping[str, int]
    contributed: Mapping[str, int]

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]]) -> Participation:
        """The sum over the rounds of `private/rounds.jsonl`.

        >>> seen = Participation.of([{"names": ["north", "south"], "failed": ["south"]}])
        >>> seen.less
        {'south': (0, 1)}
        """
        asked: Counter[str] = Counter()
        failed: Counter[str] = Counter()
        for row in rows:
            asked.update(row.get("names", []))
            failed.update(row.get("failed", []))
        return cls(asked, {name: count - failed[name] for name, count in asked.items()})

    @property
    def less(self) -> dict[str, tuple[int, int]]:
        """(contributed, asked) of clients that contributed to fewer rounds than they should."""
        pairs = {name: (self.contributed[name], self.asked[name]) for name in sorted(self.asked)}
        return {name: pair for name, pair in pairs.items() if pair[0] < pair[1]}

    @property
    def lost(self) -> list[str]:
        """Clients that were asked and contributed to no round."""
        return [name for name, (contributed, _) in self.less.items() if contributed == 0]

    def in_words(self) -> str | None:
        """One sentence on who is missing; None if nobody is.

        >>> Participation({"north": 3, "south": 3}, {"north": 3, "south": 1}).in_words()
        'contributed less than asked: south to 1 of 3 rounds'
        """
        if not self.less:
            return None
        shown = [f"{name} to {n} of {of} rounds" for name, (n, of) in self.less.items()]
        more = len(shown) - MOST_NAMED
        rest = [f"and {more} more"] if more > 0 else []
        return f"contributed less than asked: {', '.join([*shown[:MOST_NAMED], *rest])}"

    def to_json(self) -> dict[str, Any]:
        """Every client's numbers."""
        clients = {
            name: {"asked": self.asked[name], "contributed": self.contributed[name]}
            for name in sorted(self.asked)
        }
        return {"schema": SCHEMA, "clients": clients}


CLIENTS_FOLDER, CLIENTS_FILE = "clients", "clients.json"


def write_evaluation(evaluation: Evaluation, directory: RunDirectory, observer: Observer) -> None:
    """What belongs to a final model besides itself; one folder per client that has its own."""
    if evaluation.content is not None:
        directory.write_json(EVALUATION_FILE, dict(evaluation.content), durable=False)
    if evaluation.pictures is not None:
        observer.pictures(evaluation.pictures, directory.path / PICTURES_FILE)
    described = {}
    for name, own in evaluation.clients.items():
        folder = directory.path / CLIENTS_FOLDER / name
        folder.mkdir(parents=True, exist_ok=True)
        client = RunDirectory(folder)
        client.save_model(own.model)
        write_evaluation(own.evaluation, client, observer)
        described[name] = {
            "model": str((folder / MODEL_FILE).relative_to(directory.path)),
            "val": dict(own.val),
            "test": dict(own.test),
        }
    if described:
        directory.write_json(CLIENTS_FILE, described)


ENVIRONMENT_FILE = "environment.json"
PACKAGES = (
    *("torch", "torchvision", "flwr", "opacus", "dp-accounting", "randomgen"),
    *("numpy", "scipy", "scikit-learn", "hydra-core", "safetensors"),
)


def versions() -> dict[str, str]:
    """What computes here: dp_fedmed, Python, and the libraries that a result depends on.

    >>> versions()["python"].startswith("3.")
    True
    """
    from dp_fedmed.version import __version__

    found = {"dp_fedmed": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name.replace("-", "_")] = version(name)
        except PackageNotFoundError:
            found[name.replace("-", "_")] = "not installed"
    return found | {"system": f"{platform.system()} {platform.machine()}"}


def environment_after(run_dir: Path, server_round: int) -> dict[str, Any]:
    """What `environment.json` is to hold when a run is resumed after a round with these versions.

    Rounds that were computed with other versions keep theirs; with the same ones the file stays as
    it is, so that a resumed run ends as if it had never stopped.
    """
    earlier, now = [], versions()
    try:
        held = json.loads((run_dir / ENVIRONMENT_FILE).read_text(encoding="utf-8"))
        earlier = [entry for entry in held["stretches"] if entry["after_round"] < server_round]
        unchanged = bool(earlier) and earlier[-1]["versions"] == now
    except (OSError, ValueError, KeyError, TypeError):
        earlier, unchanged = [], False
    if not unchanged:
        earlier.append({"after_round": server_round, "versions": now})
    return {"schema": 1, "stretches": earlier}
