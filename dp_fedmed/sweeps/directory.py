"""A sweep's folder: `sweep.yaml`, `results.jsonl`, `results.csv`, and a run directory per job."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dp_fedmed.errors import ConfigError
from dp_fedmed.privacy.files import write_file
from dp_fedmed.reporting.run_facts import read_json_lines
from dp_fedmed.run.directory import CONFIG_FILE, refuse_foreign
from dp_fedmed.run.durable import RunLock
from dp_fedmed.run.spent import LEDGER_FILE, RELEASES
from dp_fedmed.sweeps import results
from dp_fedmed.sweeps.results import CSV_FILE, JSONL_FILE, SWEEP_FILE, Row
from dp_fedmed.version import __version__

SCHEMA = 1
#: Words that say how and where a sweep computes, not what.
ELSEWHERE = ("-m", "--multirun", "run_dir=", "engine.", "hydra.launcher.")


@dataclass(frozen=True)
class SweepJob:
    """One job of a sweep.

    Attributes:
        number: its place in the sweep.
        words: Hydra's overrides, all of them.
        overrides: the swept keys with this job's values.
    """

    number: int
    words: tuple[str, ...]
    overrides: Mapping[str, Any]

    def __str__(self) -> str:
        """Its swept values on one line."""
        return " ".join(f"{key}={value}" for key, value in self.overrides.items())


def make_jobs(
    words: Sequence[Sequence[str]], first: int = 0, named: Sequence[str] = ()
) -> list[SweepJob]:
    """The jobs of Hydra's lists of overrides.

    Args:
        words: the overrides of each job.
        first: the first one's number.
        named: keys that are swept even if these jobs have one value of them in common.

    >>> [str(job) for job in make_jobs([["a=1", "seed=0"], ["a=1", "seed=1"]])]
    ['seed=0', 'seed=1']
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parser = OverridesParser.create()
    parsed = [{o.key_or_group: o.value() for o in parser.parse_overrides(list(w))} for w in words]
    keys = list(dict.fromkeys(key for values in parsed for key in values))
    swept = [
        key
        for key in keys
        if key in named or any(values.get(key) != parsed[0].get(key) for values in parsed)
    ]
    return [
        SweepJob(
            first + number,
            tuple(words[number]),
            {key: _plain(values[key]) for key in swept if key in values},
        )
        for number, values in enumerate(parsed)
    ]


def swept_keys(words: Sequence[str]) -> list[str]:
    """The keys of overrides that list several values; a later word for a key replaces it.

    >>> swept_keys(["privacy=none,sample", "seed=0,1", "privacy=sample"])
    ['seed']
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parsed = OverridesParser.create().parse_overrides(list(words))
    last = {override.key_or_group: override for override in parsed}
    return [key for key, override in last.items() if override.is_sweep_override()]


def _plain(value: Any) -> Any:
    """A value as YAML and JSON know it."""
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(getattr(value, "text", value))


class SweepDirectory:
    """The files of one sweep; one process at a time works on them.

    Raises:
        RunLocked: if another process does.
        ConfigError: if it holds another sweep, or a run.
    """

    def __init__(self, path: Path, command: Sequence[str], jobs: Sequence[SweepJob]) -> None:
        self.path = path
        if (path / CONFIG_FILE).exists():
            raise ConfigError(f"run_dir={path} holds a single run: give a sweep another run_dir")
        path.mkdir(parents=True, exist_ok=True)
        if not is_sweep(path):
            refuse_foreign(path, but="multirun.yaml")  # Hydra writes it before we are asked
        self.lock = RunLock(path)
        self.rows: dict[int, Row] = {}
        try:
            self._claim([*command], jobs)
        except BaseException:
            self.lock.release()
            raise

    def run_dir(self, job: int) -> Path:
        """Where a job runs."""
        return self.path / f"{job:03d}"

    def log_file(self, job: int) -> Path:
        """What a job prints, and why it broke, if it did."""
        return self.path / f"{job:03d}.log"

    def _claim(self, command: list[str], jobs: Sequence[SweepJob]) -> None:
        if not is_sweep(self.path):
            content = {
                "schema": SCHEMA,
                "command": command,
                "swept": _swept(jobs),
                "jobs": len(jobs),
                "created": datetime.now(UTC).isoformat(timespec="seconds"),
                "version": __version__,
            }
            self._write_sweep(content)
            return
        stored = read_sweep(self.path)
        known = all(
            value in stored["swept"].get(key, ())
            for key, values in _swept(jobs).items()
            for value in values
        )
        if _essential(stored["command"]) != _essential(command) or not known:
            raise ConfigError(
                f"run_dir={self.path} holds another sweep ({shlex.join(stored['command'])}): "
                f"resume it with dp-fedmed resume {self.path}, or give this one another run_dir"
            )
        self.rows = {row["job"]: row for row in read_results(self.path)}

    def extend(self, jobs: Sequence[SweepJob]) -> None:
        """Take in a further batch of a sweeper that hands out its jobs bit by bit."""
        stored = read_sweep(self.path)
        for key, values in _swept(jobs).items():
            held = stored["swept"].setdefault(key, [])
            held += [value for value in values if value not in held]
        stored["jobs"] = max(stored["jobs"], jobs[-1].number + 1)
        self._write_sweep(stored)

    def _write_sweep(self, content: Mapping[str, Any]) -> None:
        import yaml

        text = yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True)
        write_file(self.path / SWEEP_FILE, text.encode())

    def left_to_do(self, jobs: Sequence[SweepJob]) -> list[SweepJob]:
        """The jobs that have yet to come to their end; what others gave is in the results.

        A job that failed, or stopped for want of clients or disk, is tried again.
        """
        left = []
        for job in jobs:
            if not results.is_finished(self.run_dir(job.number)):
                self.rows.pop(job.number, None)
                left.append(job)
            elif self.rows.get(job.number, {}).get("status", results.FAILED) == results.FAILED:
                self.rows[job.number] = results.result_row(
                    job.number, self.run_dir(job.number), job.overrides
                )
        self.write_results()
        return left

    def add(self, row: Row) -> None:
        """Take in a job that has ended: at once in `results.jsonl`, and in the table."""
        self.rows[row["job"]] = row
        with open(self.path / JSONL_FILE, "ab", buffering=0) as file:
            file.write(results.to_jsonl([row]).encode())
        write_file(self.path / CSV_FILE, results.to_csv(self._in_order()).encode(), durable=False)

    def write_results(self) -> None:
        """Both files in job order, each whole or not at all."""
        write_file(self.path / JSONL_FILE, results.to_jsonl(self._in_order()).encode())
        write_file(self.path / CSV_FILE, results.to_csv(self._in_order()).encode())

    def _in_order(self) -> list[Row]:
        return [self.rows[job] for job in sorted(self.rows)]


def has_begun(run_dir: Path) -> bool:
    """Whether a run has begun in a directory, so that it can only be resumed.

    One that was killed before the first line of its ledger has spent nothing and left nothing.
    """
    ledger = run_dir / LEDGER_FILE
    return (
        (ledger.exists() and b"\n" in ledger.read_bytes())
        or any(run_dir.glob("round_*"))
        or (run_dir / RELEASES).exists()
    )


def clear_unbegun(run_dir: Path) -> None:
    """Remove what a run left that was killed before it began."""
    if run_dir.exists() and not has_begun(run_dir):
        shutil.rmtree(run_dir)


def is_sweep(path: Path) -> bool:
    """Whether a directory is a sweep's."""
    return (path / SWEEP_FILE).is_file()


def read_sweep(path: Path) -> dict[str, Any]:
    """What a sweep is: its command, keys and number of jobs.

    Raises:
        ConfigError: if the file is missing, damaged or of a newer version.
    """
    import yaml

    file = path / SWEEP_FILE
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
        known = {"schema", "command", "swept", "jobs"} <= set(content)
    except (OSError, ValueError, TypeError, yaml.YAMLError) as error:
        raise ConfigError(f"{file} cannot be read, restore it: {error}") from error
    if not known or not isinstance(content["command"], list):
        raise ConfigError(f"{file} is not a sweep's: restore it")
    if content["schema"] > SCHEMA:
        raise ConfigError(
            f"{file} has schema {content['schema']}, this version reads up to {SCHEMA}: update "
            "dp-fedmed"
        )
    return dict(content)


def read_results(path: Path) -> list[Row]:
    """Every job's last row, in job order; a line that was cut off is left out."""
    read = read_json_lines(path / JSONL_FILE, [])
    rows = {row["job"]: row for row in read if isinstance(row.get("job"), int)}
    return [rows[job] for job in sorted(rows)]


def _swept(jobs: Sequence[SweepJob]) -> dict[str, list[Any]]:
    """Each swept key with its values, in the order in which they first come."""
    values: dict[str, list[Any]] = {}
    for job in jobs:
        for key, value in job.overrides.items():
            if value not in values.setdefault(key, []):
                values[key].append(value)
    return values


def _essential(command: Sequence[str]) -> list[str]:
    return [word for word in command if not word.startswith(ELSEWHERE)]
