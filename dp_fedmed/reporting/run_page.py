"""The page of one run, its figures, and its summary for a paper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dp_fedmed.reporting import promises
from dp_fedmed.reporting.drawing import Drawn
from dp_fedmed.reporting.page import (
    banner,
    data_address,
    inlined,
    markdown_template,
    render_page,
    tile,
)
from dp_fedmed.reporting.run_facts import RunFacts, is_bound, number, numbers
from dp_fedmed.reporting.words import (
    LEVELS,
    capitalized,
    epsilon_of,
    figure,
    metric_name,
    odds_of,
    plain,
    rounded_up,
    shown_setting,
    without_paths,
)

ROUND_CHARTS = ("epsilon", "metric", "loss")
RESULT_CHARTS = ("confusion", "predictions")
CLIENT_CHARTS = ("clients", "partition")
#: What of an attack's or an audit's findings is seen at once; the rest is folded away.
EVIDENCE = (
    *("attack", "auc", "advantage", "tpr_at_fpr", "bound"),
    *("claim", "lower_bound", "confidence", "canaries", "verdict"),
)
LEFT_OUT = ("schema", "statement")


def run_page(facts: RunFacts, figures: Sequence[Drawn], *, pictures: bool = True) -> str:
    """The page of a run.

    Args:
        facts: what its directory says.
        figures: from `run_figures`.
        pictures: whether test images are shown.
    """
    charts = inlined(figures)
    return render_page(
        "run.html",
        {
            **_head(facts),
            **_guarantee(facts),
            **_result(facts),
            **_record(facts),
            "charts": [c for c in charts if c["name"] in ROUND_CHARTS],
            "client_charts": [c for c in charts if c["name"] in CLIENT_CHARTS],
            "result_charts": [c for c in charts if c["name"] in RESULT_CHARTS],
            "pictures": _pictures(facts) if pictures else None,
            "evidences": _evidences(facts),
        },
    )


def run_summary(facts: RunFacts, figures: Sequence[Drawn]) -> str:
    """A few paragraphs, a table and the figures in Markdown, for a paper."""
    return str(
        markdown_template("run_summary.md").render(
            facts=facts,
            promises=promises,
            title=heading(facts),
            observers=promises.observer_rows(facts),
            metrics=metric_rows(facts),
            figures=figures,
        )
    )


def heading(facts: RunFacts) -> str:
    """What a run was about."""
    style = {
        "none": "no privacy",
        "sample": "record-level privacy",
        "user": "client-level privacy",
        "hybrid": "record- and client-level privacy",
    }.get(facts.style, f"privacy {facts.style}")
    where = str(facts.setting("federation.topology", "federated"))
    shown = "" if where == "federated" else f", {where.replace('_', ' ')}"
    return f"{facts.setting('task.name', facts.name)}: {style}{shown}"


def metric_rows(facts: RunFacts) -> list[dict[str, str]]:
    """Metrics of the final model without those by category; the one that judges comes first."""
    val, test = facts.val, facts.test
    names = sorted({*val, *test}, key=lambda name: (name != facts.metric, name))
    return [
        {"name": metric_name(n), "val": figure(val.get(n)), "test": figure(test.get(n))}
        for n in names
        if "/" not in n
    ]


def _head(facts: RunFacts) -> dict[str, Any]:
    state = facts.state
    tone = "good" if state == "completed" else "warn"
    value = facts.test.get(facts.metric)
    tiles = [tile(figure(value), f"{metric_name(facts.metric)}, test set")]
    for level, unit in LEVELS.items():
        held = facts.guarantees.get(unit)
        if held is None:
            continue
        target = facts.target(level)
        label = f"ε for {promises.UNITS[unit]}" + (f", target {plain(target)}" if target else "")
        share = held["epsilon"] / target if target else None
        tiles.append(tile(rounded_up(held["epsilon"]), label, share))
        if facts.is_private:
            tiles.append(
                tile(odds_of(held), f"best odds of an attacker about {promises.UNITS[unit]}")
            )
    if not facts.guarantees:
        tiles.append(tile("none", "guarantee"))
    planned = facts.setting("federation.num_rounds")
    clients = facts.setting("federation.num_clients")
    tiles.append(
        tile(f"{facts.rounds_done}/{planned or '?'}", f"rounds, {figure(clients)} clients")
    )
    return {
        "kind": "run",
        "name": facts.name,
        "title": f"{heading(facts)} ({facts.name})",
        "heading": heading(facts),
        "state": state if len(state) < 30 else "stopped early",
        "state_tone": tone,
        "lead": capitalized(promises.result_sentence(facts)),
        "tiles": tiles,
        "banners": _banners(facts),
    }


def _banners(facts: RunFacts) -> list[dict[str, Any]]:
    found = []
    if facts.style == "none":
        found.append(banner("bad", "No differential privacy: the model may reveal any record."))
    elif not facts.guarantees:
        found.append(banner("bad", "No guarantee can be read: treat this run as not private."))
    elif not facts.is_private:
        found.append(banner("bad", "Not private: the noise can be reproduced from a public seed."))
    if facts.ledger.problems:
        text = "The ledger does not agree with the run directory: do not rely on this page."
        found.append(banner("bad", text, facts.ledger.problems))
    if facts.final is None:
        found.append(
            banner(
                "warn",
                f"The run has not ended: this is its state after {facts.rounds_done} rounds.",
            )
        )
    elif facts.state != "completed":
        found.append(banner("warn", f"Stopped early: {facts.state}"))
    less = facts.report.get("contributed_less")
    if isinstance(less, dict) and less:
        points = [f"{name}: {count[0]} of {count[1]} rounds" for name, count in less.items()]
        found.append(banner("warn", "Clients that contributed less than they were asked:", points))
    if facts.problems:
        found.append(banner("warn", "Some files are missing or cannot be read:", facts.problems))
    return found


def _guarantee(facts: RunFacts) -> dict[str, Any]:
    units = [
        {
            "key": unit,
            "label": promises.UNITS[unit],
            "mechanism": promises.mechanism_sentence(facts, unit),
            "parameters": promises.parameter_rows(facts, unit),
        }
        for unit in facts.guarantees
    ]
    total = facts.report.get("conservative_sum")
    summed = len(units) > 1 and facts.is_private and is_bound(total)
    return {
        "units": units,
        "observers": promises.observer_rows(facts),
        "group": promises.group_promise(facts),
        "asked": " or ".join(promises.UNITS[unit] for unit in facts.guarantees),
        "statement": str(facts.report.get("statement") or ""),
        "sum": epsilon_of(total) if summed and total is not None else None,
        "all_runs": _all_runs(facts),
        "outside": promises.not_covered(facts),
        "trust": capitalized(str(facts.report.get("trust_boundary") or "")),
    }


def _all_runs(facts: RunFacts) -> dict[str, Any] | None:
    """What a shared ledger says of all runs on the same data."""
    held = facts.report.get("all_runs_on_this_data")
    if not isinstance(held, dict):
        return None
    parts = [
        f"{epsilon_of(held[unit])} for {promises.UNITS[unit]}"
        for unit in promises.UNITS
        if is_bound(held.get(unit))
    ]
    unbounded = held.get("unbounded")
    if isinstance(unbounded, dict) and number(unbounded.get("client")) is not None:
        parts.append(f"no bound for one client, since {unbounded['client']} protect records only")
    return {"count": held.get("runs", "?"), "text": ", ".join(parts)} if parts else None


def _result(facts: RunFacts) -> dict[str, Any]:
    ended = facts.final is not None
    evaluation = facts.evaluation if ended else None
    chosen = ""
    if ended and facts.final is not None and "selected_round" in facts.final:
        why = "best on validation" if facts.style == "none" else "the last: choosing is a release"
        chosen = f"The model of round {facts.final['selected_round']} ({why})."
    categories = [
        {
            "metric": metric_name(name.split("/", 1)[0]),
            "category": name.split("/", 1)[1],
            "test": figure(value),
        }
        for name, value in sorted(facts.test.items())
        if "/" in name
    ]
    return {
        "metrics": metric_rows(facts),
        "targets": target_rows(evaluation),
        "chosen": chosen,
        "categories": categories,
        "classes": _classes(evaluation) if evaluation and "confusion" in evaluation else [],
        "counted": "" if evaluation is None else str(evaluation.get("counted", "records")),
    }


def target_rows(evaluation: dict[str, Any] | None) -> list[dict[str, str]]:
    """RMSE and MAE of each target in its own unit, and R²."""
    return [
        {"name": str(target.get("name", "target")), "unit": str(target.get("unit") or "–")}
        | {key: figure(numbers(target.get("metrics")).get(key)) for key in ("rmse", "mae", "r2")}
        for target in (evaluation or {}).get("targets", [])
    ]


def _classes(evaluation: dict[str, Any]) -> list[dict[str, str]]:
    """Recall and precision of each class."""
    matrix = evaluation["confusion"]
    rows = []
    for index, name in enumerate(evaluation["class_names"]):
        truth = sum(matrix[index])
        said = sum(row[index] for row in matrix)
        hit = matrix[index][index]
        rows.append(
            {
                "name": str(name),
                "count": figure(truth),
                "recall": f"{100 * hit / truth:.1f} %" if truth else "–",
                "precision": f"{100 * hit / said:.1f} %" if said else "–",
            }
        )
    return rows


def _pictures(facts: RunFacts) -> dict[str, str] | None:
    png = facts.pictures.get("pictures.png")
    if png is None or facts.final is None:
        return None
    segmented = facts.setting("task.kind") == "segmentation"
    text = (
        "From worst to best Dice: the image, an expert's mask, the model's, and the difference "
        "(green: both, orange: missed, purple: added)."
        if segmented
        else "The image, where the model finds it strange, and where it is damaged."
    )
    return {"source": data_address(png), "text": text}


def _evidences(facts: RunFacts) -> list[dict[str, Any]]:
    """What the attack and the audit found, if they were run."""
    found = []
    for key, title, held in (
        ("attack", "What an attack found", facts.attack),
        ("audit", "What an audit found", facts.audit),
    ):
        if held is None:
            continue
        png = facts.pictures.get(f"{key}.png")
        found.append(
            {
                "key": key,
                "title": title,
                "statement": without_paths(str(held.get("statement") or "")),
                "rows": _flat({name: held[name] for name in EVIDENCE if name in held}),
                "more": _flat({k: v for k, v in held.items() if k not in (*EVIDENCE, *LEFT_OUT)}),
                "source": None if png is None else data_address(png),
            }
        )
    return found


def _flat(held: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested values as rows; long lists are left to the file."""
    rows: list[tuple[str, str]] = []
    for key, value in held.items():
        name = f"{prefix}{key}".replace("_", " ")
        if isinstance(value, dict):
            rows += _flat(value, f"{name}: ")
        elif not isinstance(value, list):
            shown = shown_setting(value)
            rows.append((name, plain(shown) if isinstance(shown, float) else str(shown)))
        elif len(value) <= 8:
            rows.append((name, ", ".join(plain(shown_setting(v)) for v in value)))
    return rows


def _record(facts: RunFacts) -> dict[str, Any]:
    import yaml

    ledger = facts.ledger
    if ledger.problems:
        lines = ["It does not agree with the run directory:", *ledger.problems]
    elif ledger.verified:
        lines = [
            "Checked: every record is chained to the one before, and checkpoints, settings and the "
            "reported ε agree with it."
        ]
    else:
        lines = [f"Not checked. {ledger.note}".strip()]
    settings = shown_setting(facts.config)
    return {
        "ledger": lines,
        "head": ledger.head,
        "stretches": [
            {
                "after_round": row.get("after_round"),
                "versions": [f"{name} {held}" for name, held in row["versions"].items()],
            }
            for row in facts.stretches
        ],
        "settings": yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
        if settings
        else "",
        **_client_table(facts),
    }


CLIENT_COLUMNS: dict[str, Callable[[float], str]] = {
    "records": lambda value: figure(int(value)),
    "noise_multiplier": lambda value: f"{value:.4g}",
    "sample_rate": lambda value: f"{value:.3g}",
    "rounds": lambda value: figure(int(value)),
    "steps": lambda value: figure(int(value)),
    "epsilon": rounded_up,
}


def _client_table(facts: RunFacts) -> dict[str, Any]:
    held = facts.guarantees.get("record", {})
    clients = held.get("clients")
    rows = []
    for name, own in clients.items() if isinstance(clients, dict) else ():
        values = numbers(own)
        cells = [shown(values[k]) if k in values else "–" for k, shown in CLIENT_COLUMNS.items()]
        has_left = isinstance(own, dict) and own.get("left")
        rows.append({"name": f"{name} (left)" if has_left else str(name), "cells": cells})
    note = "Rounds and steps are the planned worst case: who took part when is secret."
    is_planned = held.get("rounds_shown") == "planned worst case"
    return {"client_rows": rows, "client_note": note if is_planned else ""}
