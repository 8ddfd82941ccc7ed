"""What a sweep's directory says: the results of its jobs, and which of them are one setting."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from dp_fedmed.reporting.run_facts import number, numbers, read_json_lines, read_yaml
from dp_fedmed.reporting.words import LEVELS, plain, rounded_up, shown_setting, without_paths
from dp_fedmed.sweeps.results import COMPLETED, JSONL_FILE, STOPPED, SWEEP_FILE

_SPENDS = re.compile(r"privacy\.(sample|user)\.(target_epsilon|noise_multiplier)")
SAID_ELSEWHERE = {"seed", "task", "privacy", "privacy.style", "federation.topology"}
#: Settings that a style does not look at: jobs that differ in nothing else are one and the same.
_WITHOUT_EFFECT = {
    "none": ("privacy.",),
    "sample": ("privacy.user.",),
    "user": ("privacy.sample.",),
}
_FOLDER = re.compile(r"\w[\w.-]*")


@dataclass(frozen=True)
class JobResult:
    """One finished job, as its line in `results.jsonl` says."""

    number: int
    folder: str
    overrides: dict[str, str]
    status: str
    message: str
    task: str
    style: str
    topology: str
    seed: str
    rounds: float | None
    seconds: float | None
    metric: str
    val: dict[str, float]
    test: dict[str, float]
    epsilon: dict[str, float]
    delta: dict[str, float]
    is_private: bool

    @property
    def broke(self) -> bool:
        """Whether it did not come to its end."""
        return self.status not in (COMPLETED, STOPPED)

    @property
    def failed(self) -> bool:
        """Whether it has no result."""
        return self.broke or self.metric not in self.test

    @property
    def setting(self) -> tuple[str, ...]:
        """What distinguishes it from other jobs, but for the seed."""
        return (*self.line, *self._words(spends=True))

    @property
    def line(self) -> tuple[str, ...]:
        """The same but for how much may be spent: one curve of ε."""
        return (self.task, self.style, self.topology, *self._words(spends=False))

    @property
    def name(self) -> str:
        """Its folder's name, or its number."""
        return self.folder or f"{self.number:03d}"

    @property
    def reason(self) -> str:
        """Why it has no result."""
        return self.message or self.status

    @property
    def shown_overrides(self) -> str:
        """Its swept values on one line."""
        return " ".join(f"{key}={value}" for key, value in self.overrides.items())

    @property
    def where(self) -> str:
        """Its topology in words."""
        return self.topology.replace("_", " ")

    def in_words(self, setting: tuple[str, ...]) -> str:
        """A setting or a line of this job's, without the task.

        A key is shown by its last part, a budget as ε, and a federation goes without saying.
        """
        shown = [self.style]
        if self.topology != "federated":
            shown.append(self.where)
        for word in setting[3:]:
            key, value = word.split("=", 1)
            name = key.rsplit(".", 1)[-1].replace("_", " ")
            spends = _SPENDS.fullmatch(key)
            if spends:
                symbol = {"target_epsilon": "ε", "noise_multiplier": "σ"}[spends[2]]
                name = f"{LEVELS[spends[1]]} {symbol}" if self.style == "hybrid" else symbol
            shown.append(f"{name} {value}")
        return ", ".join(shown)

    def _words(self, *, spends: bool) -> list[str]:
        return [
            f"{key}={value}"
            for key, value in sorted(self.overrides.items())
            if key not in SAID_ELSEWHERE
            and value != self.topology  # federation=centralized
            and not key.startswith(_WITHOUT_EFFECT.get(self.style, ()))
            and bool(_SPENDS.fullmatch(key)) is spends
        ]


@dataclass(frozen=True)
class Setting:
    """Jobs that differ in their seed alone."""

    jobs: tuple[JobResult, ...]

    @property
    def first(self) -> JobResult:
        """The first job, which stands for all but their seeds."""
        return self.jobs[0]

    @property
    def is_private(self) -> bool:
        """Whether every one of them has a guarantee."""
        return all(job.is_private and job.epsilon for job in self.jobs)

    def epsilon(self, level: str) -> float | None:
        """The largest of its jobs, if each has one."""
        held = [job.epsilon.get(level) for job in self.jobs]
        return None if any(e is None for e in held) else max(e for e in held if e is not None)

    def shown_epsilon(self, level: str) -> str:
        """The same as a table has it: a dash where nothing is promised."""
        epsilon = self.epsilon(level) if self.is_private else None
        return "–" if epsilon is None else rounded_up(epsilon)

    @cached_property
    def test(self) -> Spread:
        """The test metric over seeds."""
        return Spread.of(job.test.get(job.metric) for job in self.jobs)

    @cached_property
    def val(self) -> Spread | None:
        """The validation metric over seeds; None where a job has none."""
        held = [job.val.get(job.metric) for job in self.jobs]
        return None if any(v is None for v in held) else Spread.of(held)

    @property
    def label(self) -> str:
        """In words, without the task."""
        return self.first.in_words(self.first.setting)

    @property
    def line_label(self) -> str:
        """The same without what may be spent."""
        return self.first.in_words(self.first.line)


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over seeds."""

    mean: float
    sd: float | None
    count: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread:
        """The spread of the values that are not missing.

        >>> str(Spread.of([0.9, 0.8, 0.85]))
        '0.850 ± 0.050'
        """
        held = [value for value in values if value is not None]
        sd = statistics.stdev(held) if len(held) > 1 else None
        return cls(statistics.fmean(held) if held else math.nan, sd, len(held))

    def __str__(self) -> str:
        if not self.count:
            return "–"
        return f"{self.mean:.3f}" + (f" ± {self.sd:.3f}" if self.sd is not None else "")


@dataclass
class SweepFacts:
    """A sweep as a report sees it."""

    path: Path
    name: str
    command: list[str] = field(default_factory=list)
    swept: dict[str, list[str]] = field(default_factory=dict)
    planned: int | None = None
    created: str = ""
    version: str = ""
    jobs: list[JobResult] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def done(self) -> list[JobResult]:
        """Jobs with a result."""
        return [job for job in self.jobs if not job.failed]

    @property
    def failures(self) -> list[JobResult]:
        """Jobs without one."""
        return [job for job in self.jobs if job.failed]

    @property
    def tasks(self) -> list[str]:
        """In the order of their first job."""
        return list(dict.fromkeys(job.task for job in self.done))

    def settings(self, task: str) -> list[Setting]:
        """A task's jobs by setting, one for each seed, in the order of the first."""
        held: dict[tuple[str, ...], dict[str, JobResult]] = {}
        for job in self.done:
            if job.task == task:
                held.setdefault(job.setting, {}).setdefault(job.seed, job)
        return [Setting(tuple(jobs.values())) for jobs in held.values()]


def has_results(path: Path) -> bool:
    """Whether a folder looks like a sweep's, whole or in part."""
    return any((path / name).is_file() for name in (SWEEP_FILE, JSONL_FILE))


def read_facts(path: Path) -> SweepFacts:
    """Read a sweep's directory; what is missing or broken is in `problems`."""
    facts = SweepFacts(path=path, name=path.resolve().name)
    held = read_yaml(path / SWEEP_FILE, facts.problems)
    command, swept, planned = held.get("command"), held.get("swept"), held.get("jobs")
    if isinstance(command, list):
        facts.command = [str(shown_setting(str(word))) for word in command]
    if isinstance(swept, dict):
        facts.swept = {
            str(key): [
                plain(shown_setting(v)) for v in (values if isinstance(values, list) else [])
            ]
            for key, values in swept.items()
        }
    facts.planned = planned if isinstance(planned, int) else None
    facts.created, facts.version = str(held.get("created", "")), str(held.get("version", ""))
    _take_in(facts, read_json_lines(path / JSONL_FILE, facts.problems))
    return facts


def facts_of(path: Path, rows: Iterable[Mapping[str, Any]]) -> SweepFacts:
    """The facts of a sweep from rows in memory."""
    facts = SweepFacts(path=path, name=path.resolve().name)
    _take_in(facts, rows)
    return facts


def _take_in(facts: SweepFacts, rows: Iterable[Mapping[str, Any]]) -> None:
    latest: dict[int, JobResult] = {}  # a job that was done again counts once
    for row in rows:
        job = _job(row, facts.path)
        if job is None:
            facts.problems.append(f"{JSONL_FILE}: a line names no job")
        else:
            latest[job.number] = job
    facts.jobs = [latest[index] for index in sorted(latest)]


def _job(row: Mapping[str, Any], path: Path) -> JobResult | None:
    index, folder = row.get("job"), str(row.get("run_dir", ""))
    if isinstance(index, bool) or not isinstance(index, int):
        return None
    inside = bool(_FOLDER.fullmatch(folder)) and (path / folder).is_dir()
    overrides = row.get("overrides")
    held = overrides.items() if isinstance(overrides, dict) else ()
    return JobResult(
        number=index,
        folder=folder if inside else "",
        overrides={str(key): plain(shown_setting(value)) for key, value in held},
        status=str(row.get("status", "unknown")),
        message=without_paths(str(row.get("message") or "")),
        task=str(row.get("task", "?")),
        style=str(row.get("style", "?")),
        topology=str(row.get("topology") or "federated"),
        seed=str(row.get("seed", "?")),
        rounds=number(row.get("rounds")),
        seconds=number(row.get("seconds")),
        metric=str(row.get("metric", "?")),
        val=numbers(row.get("val")),
        test=numbers(row.get("test")),
        epsilon={k: e for k, e in numbers(row.get("epsilon")).items() if e >= 0},
        delta={k: d for k, d in numbers(row.get("delta")).items() if 0 <= d < 1},
        is_private=row.get("noise_is_private") is True and row.get("style") != "none",
    )
