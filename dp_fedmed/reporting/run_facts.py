"""What a run directory says about itself, read with care: what is missing or broken is named.

Only what may be published is read. Of `private/` that is the ledger's head, never who took part.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dp_fedmed.privacy.ledger import Head
from dp_fedmed.reporting.words import LEVELS, without_paths
from dp_fedmed.run.privacy_report import SCHEMA as REPORT_SCHEMA

SHOWN_PICTURE = 8 * 2**20  # bytes; a larger one stays beside the page
MARKS = ("config.yaml", "metrics.jsonl", "privacy_report.json")


@dataclass(frozen=True)
class LedgerFacts:
    """The ledger's head, and whether the run directory agrees with it."""

    head: Head | None = None
    verified: bool = False
    problems: tuple[str, ...] = ()
    note: str = ""


@dataclass
class RunFacts:
    """A run as a report sees it.

    Attributes:
        name: the folder's name; nothing else of its path is shown.
        config: the settings as a tree.
        rounds: the published line of each round.
        final: the last line of a run that ended, well or not.
        report: `privacy_report.json`.
        guarantees: those of the report that can be read, by unit.
        clients: what each simulated client holds.
        evaluation: the confusion matrix on the test set, or what a regression predicted there.
        stretches: the versions that computed, by the round after which they did.
        attack, audit: what those commands found.
        pictures: files that are there, by name.
        ledger: its head.
        problems: what could not be read, a sentence each.
    """

    path: Path
    name: str
    config: dict[str, Any] = field(default_factory=dict)
    rounds: list[dict[str, Any]] = field(default_factory=list)
    final: dict[str, Any] | None = None
    report: dict[str, Any] = field(default_factory=dict)
    guarantees: dict[str, dict[str, Any]] = field(default_factory=dict)
    clients: list[dict[str, Any]] = field(default_factory=list)
    evaluation: dict[str, Any] | None = None
    stretches: list[dict[str, Any]] = field(default_factory=list)
    attack: dict[str, Any] | None = None
    audit: dict[str, Any] | None = None
    pictures: dict[str, bytes] = field(default_factory=dict)
    ledger: LedgerFacts = field(default_factory=LedgerFacts)
    problems: list[str] = field(default_factory=list)

    def setting(self, key: str, default: Any = None) -> Any:
        """The value at a dotted key of the settings."""
        value: Any = self.config
        for part in key.split("."):
            if not isinstance(value, Mapping) or part not in value:
                return default
            value = value[part]
        return default if value is None else value

    @property
    def style(self) -> str:
        """The privacy style."""
        return str(self.report.get("style") or self.setting("privacy.style", "unknown"))

    @property
    def metric(self) -> str:
        """The metric that judges a model."""
        return str(self.setting("task.metric", "accuracy"))

    @property
    def test(self) -> dict[str, float]:
        """Test metrics of the final model."""
        return numbers(self.final.get("test")) if self.final else {}

    @property
    def val(self) -> dict[str, float]:
        """Validation metrics of the final model, or of the last round that has some."""
        if self.final and numbers(self.final.get("val")):
            return numbers(self.final["val"])
        return next((v for r in reversed(self.rounds) if (v := numbers(r.get("val")))), {})

    @property
    def rounds_done(self) -> int:
        """The last round that is in `metrics.jsonl`."""
        return max((row["round"] for row in self.rounds), default=0)

    @property
    def state(self) -> str:
        """`completed`, why it stopped, or that it has not ended."""
        if self.final is None:
            return "not finished"
        return without_paths(str(self.final.get("stopped", "ended")))

    @property
    def is_private(self) -> bool:
        """Whether there is a guarantee that holds."""
        return bool(self.guarantees) and self.report.get("noise_is_private") is True

    def target(self, level: str) -> float | None:
        """The ε that the settings allow a level."""
        found = self.guarantees.get(LEVELS[level], {}).get("target_epsilon")
        return number(
            found if found is not None else self.setting(f"privacy.{level}.target_epsilon")
        )


def is_run(path: Path) -> bool:
    """Whether a folder looks like a run directory."""
    return any((path / name).is_file() for name in MARKS)


def read_run(path: Path, *, ledger: bool = True) -> RunFacts:
    """Read a run directory; what is missing or broken is in `problems`, never an exception.

    Args:
        path: the run directory.
        ledger: whether to check its ledger, which takes a moment for long runs.
    """
    facts = RunFacts(path=path, name=path.resolve().name)
    facts.config = read_yaml(path / "config.yaml", facts.problems)
    _read_metrics(facts)
    report = _json(path / "privacy_report.json", facts.problems, needed=True) or {}
    if (number(report.get("schema", 1)) or 0) > REPORT_SCHEMA:
        facts.problems.append(
            f"privacy_report.json has schema {report['schema']}, this version reads up to "
            f"{REPORT_SCHEMA}: update dp-fedmed"
        )
        report = {}
    facts.report = report
    facts.guarantees = _guarantees(facts)
    partition = _json(path / "partition.json", facts.problems) or {}
    facts.clients = [row for row in _rows(partition.get("clients")) if number(row.get("records"))]
    facts.evaluation = read_evaluation(path, facts.problems)
    environment = _json(path / "environment.json", facts.problems) or {}
    facts.stretches = [
        row for row in _rows(environment.get("stretches")) if isinstance(row.get("versions"), dict)
    ]
    facts.attack = _json(path / "attack.json", facts.problems)
    facts.audit = _json(path / "audit.json", facts.problems)
    for name in ("pictures.png", "attack.png", "audit.png"):
        file = path / name
        if file.is_file() and file.stat().st_size <= SHOWN_PICTURE:
            facts.pictures[name] = file.read_bytes()
    facts.ledger = _ledger(path) if ledger else checkpoint_head(path)
    return facts


def number(value: Any) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def numbers(values: Any) -> dict[str, float]:
    """The finite numbers of a mapping.

    >>> numbers({"accuracy": 0.9, "note": "x", "loss": float("nan")})
    {'accuracy': 0.9}
    """
    if not isinstance(values, Mapping):
        return {}
    found = {str(key): number(value) for key, value in values.items()}
    return {key: value for key, value in found.items() if value is not None}


def is_bound(held: Any) -> bool:
    """Whether a value is a mapping with an ε and a δ that can be.

    >>> is_bound({"epsilon": 1.0, "delta": 1e-5}), is_bound({"epsilon": 1.0}), is_bound(None)
    (True, False, False)
    """
    values = numbers(held)
    return values.get("epsilon", -1.0) >= 0 and 0 <= values.get("delta", -1.0) < 1


def by_round(rounds: Iterable[Mapping[str, Any]], *keys: str) -> list[tuple[int, float]]:
    """(round, value) of the rounds that have a finite number at these nested keys.

    >>> by_round([{"round": 1, "val": {"loss": 0.5}}, {"round": 2}], "val", "loss")
    [(1, 0.5)]
    """
    found = []
    for row in rounds:
        value: Any = row
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        if (known := number(value)) is not None:
            found.append((row["round"], known))
    return found


def read_json_lines(path: Path, problems: list[str]) -> list[dict[str, Any]]:
    """The objects of a JSONL file; lines that are none are counted in one sentence."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        problems.append(f"{path.name} cannot be read: {error.strerror or 'it is missing'}")
        return []
    rows, broken = [], 0
    for line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict):
            rows.append(row)
        else:
            broken += 1
    if broken:
        problems.append(f"{path.name}: {broken} of {len(lines)} lines cannot be read")
    return rows


def read_yaml(path: Path, problems: list[str]) -> dict[str, Any]:
    """A YAML file's mapping; empty, and a sentence, if it cannot be read."""
    import yaml

    try:
        held = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        problems.append(f"{path.name} is missing")
        return {}
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        problems.append(f"{path.name} cannot be read")
        return {}
    if not isinstance(held, dict):
        problems.append(f"{path.name} holds no settings")
        return {}
    return held


def _json(path: Path, problems: list[str], *, needed: bool = False) -> dict[str, Any] | None:
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if needed:
            problems.append(f"{path.name} is missing")
        return None
    except (OSError, ValueError, RecursionError):
        held = None
    if not isinstance(held, dict):
        problems.append(f"{path.name} cannot be read")
        return None
    return held


def _rows(values: Any) -> list[dict[str, Any]]:
    return [v for v in values if isinstance(v, dict)] if isinstance(values, list) else []


def _read_metrics(facts: RunFacts) -> None:
    rows = read_json_lines(facts.path / "metrics.jsonl", facts.problems)
    found = {r["round"]: r for r in rows if isinstance(r.get("round"), int)}
    facts.rounds = [found[at] for at in sorted(found)]
    facts.final = next((row for row in reversed(rows) if row.get("final") is True), None)


def _guarantees(facts: RunFacts) -> dict[str, dict[str, Any]]:
    """By unit; one that lacks its numbers is no guarantee."""
    found = {}
    for row in _rows(facts.report.get("guarantees")):
        if row.get("unit") in LEVELS.values() and is_bound(row):
            found[str(row["unit"])] = row
        else:
            facts.problems.append("privacy_report.json: a guarantee lacks its unit, ε or δ")
    return found


def read_evaluation(path: Path, problems: list[str]) -> dict[str, Any] | None:
    """A square matrix of counts with a name for each class, or the points of each target."""
    held = _json(path / "evaluation.json", problems)
    if held is None:
        return None
    if "targets" in held:
        targets = [t for t in _rows(held["targets"]) if _is_compared(t)]
        if targets:
            return held | {"targets": targets}
        problems.append("evaluation.json holds no predictions")
        return None
    names, matrix = held.get("class_names"), held.get("confusion")
    square = isinstance(names, list) and isinstance(matrix, list) and len(matrix) == len(names) > 0
    if square and all(
        isinstance(row, list)
        and len(row) == len(names)  # type: ignore[arg-type]
        and all(isinstance(cell, int) and cell >= 0 for cell in row)
        for row in matrix  # type: ignore[union-attr]
    ):
        return held
    problems.append("evaluation.json holds no confusion matrix")
    return None


def _is_compared(target: dict[str, Any]) -> bool:
    """As many finite predictions as true values."""
    pair = target.get("truth"), target.get("predicted")
    return (
        all(isinstance(p, list) and all(number(v) is not None for v in p) for p in pair)
        and len(pair[0]) == len(pair[1])  # type: ignore[arg-type]
        and len(numbers(dict(enumerate(target.get("range") or [])))) == 2
    )


def _ledger(path: Path) -> LedgerFacts:
    """The head of a ledger that was checked; else what the last checkpoint says of it."""
    from dp_fedmed.errors import CheckpointError, ConfigError, LedgerError
    from dp_fedmed.run.verify import LedgerView

    said = checkpoint_head(path)
    try:
        readable = (path / "private" / "secret" / "ledger.key").is_file()
    except OSError:
        readable = False
    if not readable:
        return LedgerFacts(said.head, note=f"Its key cannot be read here. {said.note}".strip())
    try:
        view = LedgerView(path)
        problems = [without_paths(text) for text in view.problems()]
    except ConfigError as error:  # another version's settings, then: nothing is known to be wrong
        note = f"It cannot be checked by this version: {without_paths(str(error))}. {said.note}"
        return LedgerFacts(said.head, note=note.strip())
    except (LedgerError, CheckpointError, ValueError, OSError) as error:
        return LedgerFacts(said.head, problems=(without_paths(str(error)),), note=said.note)
    return LedgerFacts(view.ledger.head, verified=not problems, problems=tuple(problems))


def checkpoint_head(path: Path) -> LedgerFacts:
    """The ledger's head as the last checkpoint remembers it."""
    held = _json(path / "last" / "checkpoint.json", [])
    try:
        head = held["ledger_head"] if held is not None else {}
        found = Head(int(head["number"]), str(head["mac"]))
    except (KeyError, ValueError, TypeError):
        return LedgerFacts()
    return LedgerFacts(found, note="The last checkpoint remembers this head.")
