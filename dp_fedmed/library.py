"""Whole experiments from Python: run, resume, and what a run leaves as objects for a notebook."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dp_fedmed.config import compose
from dp_fedmed.config.own_data import with_absolute_data_path
from dp_fedmed.config.resume import resume_words
from dp_fedmed.errors import ConfigError
from dp_fedmed.run.directory import REPORT_FILE, RunDirectory

if TYPE_CHECKING:
    from PIL.Image import Image

    from dp_fedmed.reporting.plan import Plan
    from dp_fedmed.run.observer import Observer


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """What is promised about one unit.

    Attributes:
        unit: `record` or `client`.
        epsilon: ε.
        delta: δ.
        adjacency: how neighbouring data differ in one unit.
        details: everything else that the report says about it.
    """

    unit: str
    epsilon: float
    delta: float
    adjacency: str
    details: Mapping[str, Any]


@dataclass(frozen=True)
class PrivacyReport:
    """`privacy_report.json` as an object; `content` is all of it.

    >>> PrivacyReport({"style": "none", "guarantees": []}).guarantees
    ()
    """

    content: Mapping[str, Any]

    @property
    def style(self) -> str:
        """`none`, `sample`, `user` or `hybrid`."""
        return str(self.content["style"])

    @property
    def guarantees(self) -> tuple[Guarantee, ...]:
        """One for each unit that is protected."""
        return tuple(
            Guarantee(
                unit=each["unit"],
                epsilon=float(each["epsilon"]),
                delta=float(each["delta"]),
                adjacency=each["adjacency"],
                details=each,
            )
            for each in self.content["guarantees"]
        )

    def epsilon(self, unit: str = "record") -> float:
        """ε of a unit.

        Raises:
            ConfigError: if the run promises that unit nothing.
        """
        for guarantee in self.guarantees:
            if guarantee.unit == unit:
                return guarantee.epsilon
        promised = ", ".join(each.unit for each in self.guarantees) or "nobody"
        raise ConfigError(
            f"unit={unit!r} is promised nothing by this run, which protects {promised}"
        )


@dataclass(frozen=True)
class RunResult:
    """How a run ended, and what it left: open one of any run directory with `RunResult.open`.

    Attributes:
        run_dir: its directory.
        stopped: `completed`, or why it ended early.
        rounds: that are done.
        val: validation metrics of the final model.
        test: its test metrics.
    """

    run_dir: Path
    stopped: str
    rounds: int
    val: Mapping[str, float]
    test: Mapping[str, float]

    @classmethod
    def open(cls, run_dir: str | Path) -> RunResult:
        """A run that has ended.

        Raises:
            ConfigError: if there is none.
        """
        path = Path(run_dir)
        rows = RunDirectory(path).metrics() if path.is_dir() else []
        final = next((row for row in reversed(rows) if row.get("final")), None)
        if final is None:
            raise ConfigError(f"run_dir={path} holds no run that has ended")
        rounds = max((int(row["round"]) for row in rows if "round" in row), default=0)
        return cls(path, str(final["stopped"]), rounds, final["val"], final["test"])

    @cached_property
    def metrics(self) -> list[dict[str, float]]:
        """One row per round: `round`, validation metrics, and ε by level (`epsilon_sample`, …)."""
        table = []
        for row in RunDirectory(self.run_dir).metrics():
            if "round" in row:
                spent = {f"epsilon_{k}": v for k, v in (row.get("epsilon") or {}).items()}
                table.append({"round": row["round"], **(row.get("val") or {}), **spent})
        return table

    @cached_property
    def privacy(self) -> PrivacyReport:
        """What the run promises, to whom."""
        return PrivacyReport(json.loads((self.run_dir / REPORT_FILE).read_text(encoding="utf-8")))

    @property
    def figures(self) -> list[str]:
        """Names that `figure` knows in this run."""
        return sorted(file.stem for file in self.run_dir.glob("*.png"))

    def figure(self, name: str) -> Image:
        """A picture of the run, as a notebook shows it: `metrics`, `partition` or `pictures`.

        Raises:
            ConfigError: naming those that there are.
        """
        from PIL import Image

        if name not in self.figures:
            known = ", ".join(self.figures) or "none"
            raise ConfigError(f"figure {name!r} is not in {self.run_dir}: there is {known}")
        return Image.open(self.run_dir / f"{name}.png")

    def _repr_html_(self) -> str:
        """A table of the test metrics and of what is promised, for notebooks."""
        rows = [(name, f"{value:.4g}") for name, value in self.test.items()]
        rows += [
            (f"ε for one {each.unit}", f"{each.epsilon:.3f} (δ = {each.delta:.1g})")
            for each in self.privacy.guarantees
        ]
        cells = "".join(f"<tr><td>{name}</td><td>{value}</td></tr>" for name, value in rows)
        return f"<table><caption>{self.run_dir.name}: {self.stopped}</caption>{cells}</table>"


def run(
    overrides: Sequence[str] = (), *, observer: Observer | None = None, quiet: bool = False
) -> RunResult:
    """Run an experiment: `dp-fedmed run` with the same overrides.

    Args:
        overrides: Hydra's words, for example `["task=digits", "privacy=sample"]`.
        observer: watches the run; a live panel unless given.
        quiet: show nothing; the log is in the run's directory.

    Raises:
        ConfigError: for settings that cannot be.

    Example:
        >>> run(["task=breast_cancer"]).privacy.epsilon("record")  # doctest: +SKIP
        2.999
    """
    return _run(list(overrides), observer, quiet)


def plan(
    overrides: Sequence[str] = (),
    *,
    records: Mapping[str, int] | None = None,
    fast: bool = False,
) -> Plan:
    """What a run with these overrides would spend: `dp-fedmed plan`, untrained.

    Args:
        overrides: as for `run`.
        records: each client's number of records, where the data are not here.
        fast: RDP for all clients, more only for the one that binds.

    Example:
        >>> made = plan(["privacy=sample"], records={"north": 1200, "south": 400}, fast=True)
        >>> made.forecast.config.privacy.sample.target_epsilon
        3.0
    """
    from dp_fedmed.planned import make_plan_of

    return make_plan_of(overrides, records=records, fast=fast)


def resume(
    run_dir: str | Path,
    overrides: Sequence[str] = (),
    *,
    observer: Observer | None = None,
    quiet: bool = False,
) -> RunResult:
    """Resume a run from its last checkpoint, or extend it with more rounds.

    Args:
        run_dir: of a run that was stopped, or that is to have more rounds.
        overrides: what is to change, for example `["federation.num_rounds=40"]`.
        observer: as for `run`.
        quiet: as for `run`.
    """
    path = Path(run_dir).resolve()
    if not (path / "config.yaml").is_file():
        raise ConfigError(f"run_dir={path} holds no run to resume: config.yaml is missing")
    quoted = str(path).replace("'", "\\'")
    return _run(resume_words([f"run_dir='{quoted}'", "resume=last", *overrides]), observer, quiet)


def _run(words: list[str], observer: Observer | None, quiet: bool) -> RunResult:
    from dp_fedmed.launch import run_federation
    from dp_fedmed.reporting.display import ConsoleDisplay, LogDisplay
    from dp_fedmed.reporting.run_log import quiet_console

    config = with_absolute_data_path(compose(words))
    quiet_console()
    shown = observer or (LogDisplay() if quiet else ConsoleDisplay(config))
    ended = run_federation(config, shown)
    return RunResult(ended.run_dir, ended.stopped, ended.rounds, ended.val, ended.test)
