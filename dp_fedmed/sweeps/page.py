"""The page of a sweep: what accuracy there is for which ε, and every run in a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dp_fedmed.reporting.drawing import Drawn
from dp_fedmed.reporting.page import banner, inlined, markdown_template, render_page, tile
from dp_fedmed.reporting.report import PAGE, write_folder, write_run_report, write_text
from dp_fedmed.reporting.run_facts import is_run
from dp_fedmed.reporting.words import (
    LEVELS,
    ONE_UNIT,
    capitalized,
    figure,
    metric_name,
    plain,
    rounded_up,
)
from dp_fedmed.sweeps.facts import (
    SAID_ELSEWHERE,
    JobResult,
    Setting,
    Spread,
    SweepFacts,
    read_facts,
)
from dp_fedmed.sweeps.figures import sweep_figures
from dp_fedmed.sweeps.summary import (
    NOT_PRIVATE,
    TUNING,
    Cost,
    SweepSummary,
    TaskSummary,
    by_epsilon,
    spending,
    summarize,
)

if TYPE_CHECKING:
    from rich.console import Console


def write_sweep_report(
    directory: Path,
    page: Path,
    *,
    inside: bool,
    pictures: bool = True,
    runs: bool = True,
    console: Console | None = None,
) -> None:
    """Writes a sweep's page with its figures and summary, and the pages of its runs.

    Args:
        directory: the sweep's.
        page: where the page goes.
        inside: whether the pages of runs go into their directories, too.
        pictures: whether test records are shown, as images or as points.
        runs: whether the runs get pages of their own.
        console: where progress is shown.
    """
    from rich.progress import track

    facts = read_facts(directory)
    folder = page.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    jobs = [job for job in facts.jobs if runs and job.folder and is_run(directory / job.folder)]
    links = {}
    for job in track(jobs, "pages of the runs", console=console, disable=len(jobs) < 2):
        own = directory / job.folder / PAGE if inside else folder / f"{job.folder}.html"
        links[job.number] = f"{job.folder}/{PAGE}" if inside else f"{folder.name}/{own.name}"
        run_dir = directory / job.folder
        write_run_report(run_dir, own, inside=inside, pictures=pictures, figures=False)
    drawn = sweep_figures(facts)
    write_text(page, sweep_page(facts, drawn, links))
    write_folder(folder, drawn, sweep_summary(facts, drawn))


def sweep_page(facts: SweepFacts, figures: Sequence[Drawn], links: Mapping[int, str]) -> str:
    """The page of a sweep; `links` has the relative address of each job's own page."""
    summary, columns = summarize(facts), _columns(facts)
    headings = [("run", ""), *((c.label, c.kind) for c in columns), ("status", "")]
    return render_page(
        "sweep.html",
        {
            **_head(facts, summary),
            "charts": inlined(figures),
            "bests": _best_blocks(summary),
            "costs": [_table(task) for task in summary.tasks],
            "columns": [{"label": label, "kind": kind} for label, kind in headings],
            "rows": [_row(job, columns, links.get(job.number)) for job in facts.jobs],
            "styles": list(dict.fromkeys(job.style for job in facts.jobs)),
            "statuses": list(dict.fromkeys(job.status for job in facts.jobs)),
            "failures": [
                {"name": job.name, "what": job.shown_overrides, "message": job.reason}
                for job in facts.failures
            ],
            "command": " ".join(facts.command),
            "swept": [(key, ", ".join(values)) for key, values in facts.swept.items()],
            "made": " with dp_fedmed ".join(t for t in (facts.created, facts.version) if t),
        },
    )


def sweep_summary(facts: SweepFacts, figures: Sequence[Drawn]) -> str:
    """Tables and figures in Markdown, for a paper."""
    summary = summarize(facts)
    return str(
        markdown_template("sweep_summary.md").render(
            name=facts.name,
            lead=_lead(summary),
            tables=[_table(task) for task in summary.tasks],
            bests=_best_blocks(summary),
            failures=[f"{job.name}: {job.reason}" for job in facts.failures],
            figures=figures,
            tuning=" ".join([TUNING, *spending(summary)]),
        )
    )


def _head(facts: SweepFacts, summary: SweepSummary) -> dict[str, Any]:
    done, planned = len(facts.done), facts.planned or len(facts.jobs)
    complete = done == planned and done > 0
    return {
        "kind": "sweep",
        "name": facts.name,
        "title": f"Sweep {facts.name}",
        "heading": f"{', '.join(facts.tasks) or facts.name}: {planned} runs compared",
        "state": "completed" if complete else f"{done} of {planned} done",
        "state_tone": "good" if complete else "warn",
        "lead": _lead(summary),
        "tiles": _tiles(facts, summary, done, planned),
        "banners": _banners(facts, summary),
    }


def _tiles(
    facts: SweepFacts, summary: SweepSummary, done: int, planned: int
) -> list[dict[str, Any]]:
    tiles = [tile(f"{done}/{planned}", "runs with a result", done / planned if planned else 0.0)]
    for task in summary.tasks[:2]:
        label = f"best mean test {metric_name(task.metric)} ({task.top.label})"
        tiles.append(tile(f"{task.top.test.mean:.3f}", label))
    for level, unit in ONE_UNIT.items():
        spent = [j.epsilon[level] for j in facts.done if j.is_private and level in j.epsilon]
        if spent:
            low, high = rounded_up(min(spent)), rounded_up(max(spent))
            tiles.append(tile(low if low == high else f"{low}–{high}", f"ε for {unit}"))
    return [*tiles, tile(str(len({job.seed for job in facts.jobs})), "seeds")]


def _banners(facts: SweepFacts, summary: SweepSummary) -> list[dict[str, Any]]:
    found = [banner("warn", TUNING, spending(summary))] if len(facts.done) > 1 else []
    if facts.failures:
        count = len(facts.failures)
        noun = "job has" if count == 1 else "jobs have"
        found.append(banner("bad", f"{count} {noun} no result: see the end of the page."))
    if summary.has_public_noise:
        found.append(banner("bad", f"{NOT_PRIVATE} They are in no curve."))
    if facts.problems:
        text = "Some files are missing or cannot be read:"
        found.append(banner("warn", text, dict.fromkeys(facts.problems)))
    return found


def _lead(summary: SweepSummary) -> str:
    """One sentence per task: from the smallest ε to the largest, and without privacy."""
    if not summary.tasks:
        return "No job has a result yet."
    return capitalized("; ".join(_task_in_words(task) for task in summary.tasks)) + "."


def _task_in_words(task: TaskSummary) -> str:
    found = []
    for level in task.levels[:1]:
        known = by_epsilon(task.federated, level) or by_epsilon(task.settings, level)
        for epsilon, setting in known[:1] + known[1:][-1:]:
            found.append(f"{setting.test} at ε = {rounded_up(epsilon)} for {ONE_UNIT[level]}")
    for setting in task.without_privacy:
        found.append(f"{setting.test} without privacy ({setting.first.where})")
    what = f"test {metric_name(task.metric)} of {task.task}"
    return f"{what}: {', '.join(found)}" if found else what


def _best_blocks(summary: SweepSummary) -> list[dict[str, Any]]:
    """A chooser for each task and level: the best setting up to each ε."""
    blocks: list[dict[str, Any]] = []
    for task in summary.tasks:
        for level in task.levels:
            found = task.best(level)
            blocks.append(
                {
                    "key": f"{len(blocks)}",
                    "unit": ONE_UNIT[level],
                    "task": task.task if len(summary.tasks) > 1 else "",
                    "metric": metric_name(task.metric),
                    "by": found[0].by,
                    "rows": [
                        {
                            **_setting_row(best.setting),
                            "epsilon": best.epsilon,
                            "shown": rounded_up(best.epsilon),
                            "jobs": [job.number for job in best.setting.jobs],
                            "runs": ", ".join(job.name for job in best.setting.jobs),
                        }
                        for best in found
                    ],
                    "low": found[0].epsilon,
                    "high": found[-1].epsilon,
                    "start": rounded_up(found[-1].epsilon, 4),
                }
            )
    return blocks


def _table(task: TaskSummary) -> dict[str, Any]:
    """A task's settings, and what federation and privacy cost."""
    return {
        "task": task.task,
        "metric": metric_name(task.metric),
        "settings": [_setting_row(setting) for setting in task.settings],
        "rows": [_cost_row(cost) for cost in task.costs],
    }


def _setting_row(setting: Setting) -> dict[str, str]:
    return {
        "label": setting.label,
        **{unit: setting.shown_epsilon(level) for level, unit in LEVELS.items()},
        "val": "–" if setting.val is None else str(setting.val),
        "test": str(setting.test),
        "seeds": str(setting.test.count),
    }


def _cost_row(cost: Cost) -> dict[str, str]:
    lost = cost.lost
    size = Spread(abs(lost.mean), lost.sd, lost.count)
    return {
        "what": cost.what,
        "before": str(cost.before.test),
        "after": str(cost.after.test),
        "value": f"{'costs' if lost.mean >= 0 else 'gains'} {size}",
    }


@dataclass(frozen=True)
class _Column:
    """A column of the table of runs: its heading, a cell's text, and what the cell is sorted by."""

    label: str
    text: Callable[[JobResult], str]
    value: Callable[[JobResult], float | None] = lambda job: None
    kind: str = ""


def _columns(facts: SweepFacts) -> list[_Column]:
    """All but the run and its status; a task or a topology only where there are several."""
    metrics = {job.metric for job in facts.jobs}
    metric = metric_name(next(iter(metrics))) if len(metrics) == 1 else "metric"
    columns = [_Column("task", lambda job: job.task)] if len(facts.tasks) > 1 else []
    columns.append(_Column("style", lambda job: job.style))
    if len({job.topology for job in facts.jobs}) > 1:
        columns.append(_Column("topology", lambda job: job.where))
    columns += [_swept_column(key) for key in facts.swept if key not in SAID_ELSEWHERE]
    columns.append(_Column("seed", lambda job: job.seed, lambda job: _as_number(job.seed)))
    columns += [
        _epsilon_column(level)
        for level in LEVELS
        if any(level in job.epsilon for job in facts.jobs)
    ]
    numeric: dict[str, tuple[Callable[[float | None], str], Callable[[JobResult], float | None]]]
    numeric = {
        f"val {metric}": (figure, lambda job: job.val.get(job.metric)),
        f"test {metric}": (figure, lambda job: job.test.get(job.metric)),
        "rounds": (plain, lambda job: job.rounds),
        "seconds": (lambda s: "–" if s is None else f"{s:.1f}", lambda job: job.seconds),
    }
    return columns + [_numeric_column(label, *each) for label, each in numeric.items()]


def _swept_column(key: str) -> _Column:
    return _Column(
        key.rsplit(".", 1)[-1].replace("_", " "),
        lambda job: job.overrides.get(key, "–"),
        lambda job: _as_number(job.overrides.get(key)),
    )


def _epsilon_column(level: str) -> _Column:
    return _numeric_column(
        f"ε {LEVELS[level]}",
        lambda epsilon: "–" if epsilon is None else rounded_up(epsilon),
        lambda job: job.epsilon.get(level) if job.is_private else None,
    )


def _numeric_column(
    label: str,
    shown: Callable[[float | None], str],
    value: Callable[[JobResult], float | None],
) -> _Column:
    return _Column(label, lambda job: shown(value(job)), value, "n")


def _row(job: JobResult, columns: Sequence[_Column], link: str | None) -> dict[str, Any]:
    return {
        "job": job.number,
        "name": job.name,
        "link": link,
        "style": job.style,
        "status": job.status,
        "tone": {"completed": "good", "stopped": "warn"}.get(job.status, "bad"),
        "cells": [{"text": c.text(job), "value": c.value(job), "kind": c.kind} for c in columns],
    }


def _as_number(text: str | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None
