"""One row per job: what a finished run says about itself in its own files, and nothing else."""

from __future__ import annotations

import contextlib
import csv
import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from yaml import YAMLError

from dp_fedmed.config import Config, PrivacyStyle, from_yaml
from dp_fedmed.reporting.run_facts import read_json_lines
from dp_fedmed.reporting.words import LEVELS
from dp_fedmed.run.directory import CONFIG_FILE, METRICS_FILE, REPORT_FILE

SWEEP_FILE, JSONL_FILE, CSV_FILE = "sweep.yaml", "results.jsonl", "results.csv"
COMPLETED, STOPPED, FAILED = "completed", "stopped", "failed"
LEVEL_OF = {unit: level for level, unit in LEVELS.items()}
#: What a row holds by metric or by level.
BY_NAME = ("val", "test", "epsilon", "delta", "target_epsilon")
Row = dict[str, Any]


def final_line(run_dir: Path) -> dict[str, Any] | None:
    """The last line of a run's metrics, if the run came to its end; None otherwise."""
    try:
        lines = (run_dir / METRICS_FILE).read_text(encoding="utf-8").splitlines()
        row = json.loads(lines[-1])
    except (OSError, ValueError, IndexError):
        return None
    return row if isinstance(row, dict) and row.get("final") is True else None


def is_finished(run_dir: Path) -> bool:
    """Whether nothing is left to do: every round is done, or a budget is spent."""
    line = final_line(run_dir)
    return line is not None and (
        line["stopped"] == COMPLETED or str(line["stopped"]).startswith("budget")
    )


def result_row(
    job: int, run_dir: Path, overrides: Mapping[str, Any], *, seconds: float | None = None
) -> Row:
    """A job's row, read from its run directory.

    Args:
        job: its number.
        run_dir: its run directory.
        overrides: the swept keys with its own values.
        seconds: how long it took; without it, from the ages of the directory's files.

    Raises:
        ValueError: if the run has not come to its end, or a file of it is damaged.
    """
    line = final_line(run_dir)
    if line is None:
        raise ValueError(f"{run_dir / METRICS_FILE} has no final line: the run has not ended")
    try:
        config = from_yaml((run_dir / CONFIG_FILE).read_text(encoding="utf-8"), run_dir)
        report = json.loads((run_dir / REPORT_FILE).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{error.filename} cannot be read: {error.strerror}") from error
    levels = {LEVEL_OF[held["unit"]]: held for held in report["guarantees"]}
    if seconds is None:
        ages = [(run_dir / name).stat().st_mtime for name in (".lock", METRICS_FILE)]
        seconds = max(0.0, ages[1] - ages[0])
    stopped = str(line["stopped"])
    return _described(job, run_dir, overrides, config) | {
        "status": COMPLETED if stopped == COMPLETED else STOPPED,
        "message": "" if stopped == COMPLETED else stopped,
        "rounds": _rounds_done(run_dir),
        "seconds": round(seconds, 3),
        "val": line["val"],
        "test": line["test"],
        **{key: {level: held[key] for level, held in levels.items()} for key in BY_NAME[2:]},
        "noise_is_private": bool(report.get("noise_is_private", False)),
    }


def failed_row(
    job: int,
    run_dir: Path,
    overrides: Mapping[str, Any],
    message: str,
    *,
    seconds: float,
    config: Config | None = None,
) -> Row:
    """The row of a job that did not come to its end, with what is known of it."""
    if config is None:
        with contextlib.suppress(OSError, ValueError, YAMLError):
            config = from_yaml((run_dir / CONFIG_FILE).read_text(encoding="utf-8"), run_dir)
    return _described(job, run_dir, overrides, config) | {
        "status": FAILED,
        "message": " ".join(message.split()),
        "rounds": _rounds_done(run_dir),
        "seconds": round(seconds, 3),
        **{key: {} for key in BY_NAME},
        "noise_is_private": False,
    }


def _described(job: int, run_dir: Path, overrides: Mapping[str, Any], config: Config | None) -> Row:
    """What a row says about a job before it has run; empty where its settings cannot be right."""
    return {
        "job": job,
        "run_dir": run_dir.name,
        "overrides": dict(overrides),
        "status": FAILED,
        "message": "",
        "task": str(overrides.get("task", "")) if config is None else config.task.name,
        "style": str(PrivacyStyle.none if config is None else config.privacy.style),
        "seed": overrides.get("seed", 0) if config is None else config.seed,
        "topology": "federated" if config is None else str(config.federation.topology),
        "clients": 0 if config is None else config.federation.num_clients,
        "rounds": 0,
        "seconds": 0.0,
        "metric": "" if config is None else config.task.metric,
    }


def _rounds_done(run_dir: Path) -> int:
    rows = read_json_lines(run_dir / METRICS_FILE, [])
    return max((row["round"] for row in rows if isinstance(row.get("round"), int)), default=0)


def flattened(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with one value per column: `test.accuracy`, `epsilon.sample`; overrides by their keys.

    >>> flattened({"job": 1, "overrides": {"training.lr": 0.1}, "test": {"accuracy": 0.9}})
    {'job': 1, 'training.lr': 0.1, 'test.accuracy': 0.9}
    """
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if not isinstance(value, Mapping):
            flat[key] = value
            continue
        for inner, held in value.items():
            name = inner if key == "overrides" else f"{key}.{inner}"
            # A swept `seed` or `task` has a column of its own already, with the same value.
            flat.setdefault(name, json.dumps(held) if isinstance(held, dict | list) else held)
    return flat


def to_csv(rows: Iterable[Mapping[str, Any]]) -> str:
    """All rows as one table; a row without a column leaves it empty."""
    flat = [flattened(row) for row in rows]
    columns = list(dict.fromkeys(key for row in flat for key in row))
    # Columns of one kind stay together, whichever row brought them.
    kinds = list(dict.fromkeys(_kind(name) for name in columns))
    columns.sort(key=lambda name: kinds.index(_kind(name)))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()


def _kind(column: str) -> str:
    head = column.split(".")[0]
    return head if head in BY_NAME else column


def to_jsonl(rows: Iterable[Mapping[str, Any]]) -> str:
    """All rows, one JSON object per line."""
    return "".join(json.dumps(row, allow_nan=False, ensure_ascii=False) + "\n" for row in rows)
