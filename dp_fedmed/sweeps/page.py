"""The page of a sweep: what accuracy there is for which ε, and every run in a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dp_fedmed.config import better
from dp_fedmed.reporting.drawing import Drawn
from dp_fedmed.reporting.page import banner, inlined, render_page, tile
from dp_fedmed.reporting.privacy_card import markdown_template
from dp_fedmed.reporting.words import LEVELS, figure, metric_name, plain, rounded_up
from dp_fedmed.sweeps.facts import (
    SAID_ELSEWHERE,
    Best,
    Cost,
    Job,
    Setting,
    Spread,
    SweepFacts,
    best_by_epsilon,
    costs,
)
from dp_fedmed.sweeps.words import NOT_PRIVATE, TUNING, UNIT_OF, spending


def sweep_page(facts: SweepFacts, figures: Sequence[Drawn], links: Mapping[int, str]) -> str:
    """The page of a sweep.

    Args:
        facts: what its directory says.
        figures: from `sweep_figures`.
        links: from a job's number to the address of its own page, relative to this one.
    """
    swept = [key for key in facts.swept if key not in SAID_ELSEWHERE]
    return render_page(
        "sweep.html",
        {
            **_head(facts),
            "charts": inlined(figures),
            "bests": _best_blocks(facts),
            "costs": [_cost_block(task, facts.settings(task)) for task in facts.tasks],
            "columns": _columns(facts, swept),
            "rows": [_row(job, facts, swept, links.get(job.number)) for job in facts.jobs],
            "styles": list(dict.fromkeys(job.style for job in facts.jobs)),
            "statuses": list(dict.fromkeys(job.status for job in facts.jobs)),
            "failures": [
                {"name": _name(job), "what": _overrides(job), "message": job.message or job.status}
                for job in facts.failures
            ],
            "command": " ".join(facts.command),
            "swept": [(key, ", ".join(values)) for key, values in facts.swept.items()],
            "made": " with dp_fedmed ".join(t for t in (facts.created, facts.version) if t),
        },
    )


def sweep_summary(facts: SweepFacts, figures: Sequence[Drawn]) -> str:
    """Tables and figures in Markdown, for a paper."""
    tables = [
        {
            "task": task,
            "metric": metric_name(facts.settings(task)[0].first.metric),
            "settings": [_summary_row(setting) for setting in facts.settings(task)],
            "costs": [_cost_row(cost) for cost in costs(facts.settings(task))],
        }
        for task in facts.tasks
    ]
    return str(
        markdown_template("sweep_summary.md").render(
            name=facts.name,
            lead=_lead(facts),
            tables=tables,
            bests=_best_blocks(facts),
            failures=[f"{_name(j)}: {j.message or j.status}" for j in facts.failures],
            figures=figures,
            tuning=" ".join([TUNING, *spending(facts)]),
        )
    )


def _head(facts: SweepFacts) -> dict[str, Any]:
    done, planned = len(facts.done), facts.planned or len(facts.jobs)
    tiles = [tile(f"{done}/{planned}", "runs with a result", done / planned if planned else 0.0)]
    for task in facts.tasks[:2]:
        settings = facts.settings(task)
        ranked = [s.test.mean * better(s.first.metric) for s in settings]
        top = settings[ranked.index(max(ranked))]
        what = metric_name(top.first.metric)
        tiles.append(tile(f"{top.test.mean:.3f}", f"best mean test {what} ({top.label})"))
    for level, unit in UNIT_OF.items():
        spent = [
            job.epsilon[level] for job in facts.done if job.is_private and level in job.epsilon
        ]
        if spent:
            low, high = rounded_up(min(spent)), rounded_up(max(spent))
            tiles.append(tile(low if low == high else f"{low}–{high}", f"ε for {unit}"))
    tiles.append(tile(str(len({job.seed for job in facts.jobs})), "seeds"))
    banners = [banner("warn", TUNING, spending(facts))] if done > 1 else []
    if facts.failures:
        count = len(facts.failures)
        noun = "job has" if count == 1 else "jobs have"
        banners.append(banner("bad", f"{count} {noun} no result: see the end of the page."))
    if any(job.style != "none" and not job.is_private for job in facts.done):
        banners.append(banner("bad", f"{NOT_PRIVATE} They are in no curve."))
    if facts.problems:
        text = "Some files are missing or cannot be read:"
        banners.append(banner("warn", text, dict.fromkeys(facts.problems)))
    complete = done == planned and done > 0
    return {
        "kind": "sweep",
        "name": facts.name,
        "title": f"Sweep {facts.name}",
        "heading": f"{', '.join(facts.tasks) or facts.name}: {planned} runs compared",
        "state": "completed" if complete else f"{done} of {planned} done",
        "state_tone": "good" if complete else "warn",
        "lead": _lead(facts),
        "tiles": tiles,
        "banners": banners,
    }


def _lead(facts: SweepFacts) -> str:
    """The sweep in a sentence a task: from the smallest ε to the largest, and without privacy."""
    if not facts.done:
        return "No job has a result yet."
    parts = []
    for task in facts.tasks:
        settings = facts.settings(task)
        metric = metric_name(settings[0].first.metric)
        found = [f"test {metric} of {task}"]
        levels = facts.levels(task)
        if levels:
            level = levels[0]
            known = sorted(
                ((e, s) for s in settings if s.is_private and (e := s.epsilon(level)) is not None),
                key=lambda pair: pair[0],
            )
            federated = [pair for pair in known if pair[1].first.topology == "federated"]
            known = federated or known
            for epsilon, setting in known[:1] + known[1:][-1:]:
                found.append(f"{setting.test} at ε = {rounded_up(epsilon)} for {UNIT_OF[level]}")
        for setting in [s for s in settings if s.first.style == "none"][:3]:
            where = setting.first.topology.replace("_", " ")
            found.append(f"{setting.test} without privacy ({where})")
        parts.append(f"{found[0]}: {', '.join(found[1:])}" if found[1:] else found[0])
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}."


def _best_blocks(facts: SweepFacts) -> list[dict[str, Any]]:
    """A chooser for each task and level: the best setting up to each ε, baselines left out."""
    blocks: list[dict[str, Any]] = []
    for task in facts.tasks:
        settings = facts.settings(task)
        for level in facts.levels(task):
            federated = [s for s in settings if s.first.topology == "federated"]
            found = best_by_epsilon(federated, level) or best_by_epsilon(settings, level)
            metric = metric_name(settings[0].first.metric)
            blocks.append(
                {
                    "key": f"{len(blocks)}",
                    "unit": UNIT_OF[level],
                    "task": task if len(facts.tasks) > 1 else "",
                    "metric": metric,
                    "by": found[0].by,
                    "rows": [_best_row(best) for best in found],
                    "low": found[0].epsilon,
                    "high": found[-1].epsilon,
                    "start": rounded_up(found[-1].epsilon, 4),
                }
            )
    return blocks


def _best_row(best: Best) -> dict[str, Any]:
    setting = best.setting
    return {
        "epsilon": best.epsilon,
        "shown": rounded_up(best.epsilon),
        "label": setting.label,
        "val": "–" if setting.val is None else str(setting.val),
        "test": str(setting.test),
        "jobs": [job.number for job in setting.jobs],
        "runs": ", ".join(_name(job) for job in setting.jobs),
    }


def _cost_block(task: str, settings: list[Setting]) -> dict[str, Any]:
    return {
        "task": task,
        "metric": metric_name(settings[0].first.metric),
        "rows": [_cost_row(cost) for cost in costs(settings)],
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


def _columns(facts: SweepFacts, swept: Sequence[str]) -> list[dict[str, str]]:
    metrics = {job.metric for job in facts.jobs}
    metric = metric_name(next(iter(metrics))) if len(metrics) == 1 else "metric"
    named = [key.rsplit(".", 1)[-1].replace("_", " ") for key in swept]
    tasks = ["task"] if len(facts.tasks) > 1 else []
    text = ["run", *tasks, "style", *_topology(facts, "topology"), *named, "seed"]
    numeric = [
        *(f"ε {LEVELS[level]}" for level in _levels(facts)),
        f"val {metric}",
        f"test {metric}",
        "rounds",
        "seconds",
    ]
    return [
        *({"label": label, "kind": ""} for label in text),
        *({"label": label, "kind": "n"} for label in numeric),
        {"label": "status", "kind": ""},
    ]


def _row(job: Job, facts: SweepFacts, swept: Sequence[str], link: str | None) -> dict[str, Any]:
    def cell(text: str, value: float | None = None, kind: str = "") -> dict[str, Any]:
        return {"text": text, "value": value, "kind": kind}

    val, test = job.val.get(job.metric), job.test.get(job.metric)
    spent = [job.epsilon.get(level) if job.is_private else None for level in _levels(facts)]
    cells = [
        *([cell(job.task)] if len(facts.tasks) > 1 else []),
        cell(job.style),
        *(cell(text) for text in _topology(facts, job.topology.replace("_", " "))),
        *(cell(job.overrides.get(key, "–"), _as_number(job.overrides.get(key))) for key in swept),
        cell(job.seed, _as_number(job.seed)),
        *(cell("–" if e is None else rounded_up(e), e, "n") for e in spent),
        *(cell(figure(value), value, "n") for value in (val, test)),
        cell(plain(job.rounds), job.rounds, "n"),
        cell("–" if job.seconds is None else f"{job.seconds:.1f}", job.seconds, "n"),
    ]
    return {
        "job": job.number,
        "name": _name(job),
        "link": link,
        "style": job.style,
        "status": job.status,
        "tone": {"completed": "good", "stopped": "warn"}.get(job.status, "bad"),
        "cells": cells,
    }


def _levels(facts: SweepFacts) -> list[str]:
    """Those that any job has an ε for."""
    return [level for level in UNIT_OF if any(level in job.epsilon for job in facts.jobs)]


def _topology(facts: SweepFacts, text: str) -> list[str]:
    """A column of its own only where there is a difference to show."""
    return [text] if len({job.topology for job in facts.jobs}) > 1 else []


def _summary_row(setting: Setting) -> dict[str, str]:
    spent = [setting.epsilon(level) for level in UNIT_OF]
    shown = ["–" if e is None or not setting.is_private else rounded_up(e) for e in spent]
    return {
        "label": setting.label,
        "record": shown[0],
        "client": shown[1],
        "val": "–" if setting.val is None else str(setting.val),
        "test": str(setting.test),
        "seeds": str(setting.test.count),
    }


def _name(job: Job) -> str:
    return job.folder or f"{job.number:03d}"


def _overrides(job: Job) -> str:
    return " ".join(f"{key}={value}" for key, value in job.overrides.items())


def _as_number(text: str | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None
