"""Figures of a run: curves by round, in `metrics.png` and on its page; clients and results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dp_fedmed.privacy.accounting.events import Level
from dp_fedmed.reporting import drawing
from dp_fedmed.reporting.drawing import Drawn, Points
from dp_fedmed.reporting.run_facts import RunFacts, by_round, number, numbers
from dp_fedmed.reporting.words import ONE_UNIT, capitalized, direction, metric_name

MOST_NUMBERED = 12
MOST_TARGETS = 4
Rows = Sequence[Mapping[str, Any]]
Curves = dict[str, tuple[str, Points]]


def run_figures(facts: RunFacts, *, records: bool = True) -> list[Drawn]:
    """Every figure that a run has the facts for; `records` allows those that show test records."""
    from matplotlib import rc_context

    with rc_context(drawing.PAGE_STYLE):
        made = (
            _epsilon_figure(facts),
            _metric_figure(facts),
            _loss_figure(facts),
            _client_figure(facts),
            _partition_figure(facts),
            _confusion_figure(facts),
            _predictions_figure(facts) if records else None,
        )
    return [drawn for drawn in made if drawn is not None]


def _epsilon_figure(facts: RunFacts) -> Drawn | None:
    curves = epsilon_curves(facts.rounds)
    if not curves:
        return None
    figure, (axes,) = drawing.page_figure()
    draw_curves(axes, curves)
    for level, colour in drawing.LEVEL_COLOURS.items():
        target = facts.target(level)
        if target is not None and by_round(facts.rounds, "epsilon", level):
            axes.axhline(target, color=colour, ls="--", lw=1.1, label=f"its target {target:g}")
    axes.set_ylim(0, None)
    axes.set_ylabel("ε spent")
    drawing.round_axis(axes)
    drawing.legend_below(figure, axes)
    return Drawn("epsilon", "ε over rounds", "What each level has spent after every round.", figure)


def _metric_figure(facts: RunFacts) -> Drawn | None:
    metric, name = facts.metric, metric_name(facts.metric)
    test = facts.test.get(metric)
    shown = by_round(facts.rounds, "val", metric) or client_spread(facts.rounds, metric)
    if not shown and test is None:
        return None
    figure, (axes,) = drawing.page_figure()
    tests = {} if test is None else {f"test, final model: {test:.3f}": test}
    draw_metric(axes, facts.rounds, metric, tests)
    axes.set_ylabel(name)
    drawing.round_axis(axes)
    drawing.legend_below(figure, axes)
    caption = (
        "On the server's own validation records; on its test records once per part of the run."
    )
    caption += direction(metric)
    return Drawn("metric", f"{capitalized(name)} by round", caption, figure)


def _loss_figure(facts: RunFacts) -> Drawn | None:
    curves = loss_curves(facts.rounds, validation=facts.metric != "loss")
    if not curves:
        return None
    figure, (axes,) = drawing.page_figure()
    draw_curves(axes, curves)
    axes.set_ylabel("loss")
    drawing.round_axis(axes)
    drawing.legend_below(figure, axes)
    return Drawn("loss", "Loss by round", "Lower is better.", figure)


def _client_figure(facts: RunFacts) -> Drawn | None:
    """Data size and ε of each client; sizes alone are in the partition."""
    held = facts.guarantees.get("record", {}).get("clients")
    if not isinstance(held, dict):
        return None
    known = [
        (name, number(own.get("records")), number(own.get("epsilon")))
        for name, own in held.items()
        if isinstance(own, dict)
    ]
    rows = [(name, n, e) for name, n, e in known if n is not None and e is not None]
    if not rows:
        return None
    rows.sort(key=lambda row: (-row[1], row[0]))
    figure, (top, bottom) = drawing.page_figure(3.6, 2, sharex=True)
    drawing.bars(top, [row[1] for row in rows], drawing.BLUE)
    drawing.bars(bottom, [row[2] for row in rows], drawing.ORANGE)
    target = facts.target(Level.sample)
    if target is not None:
        bottom.axhline(target, color=drawing.ORANGE, ls="--", lw=1.1)
    top.set_ylabel("records")
    bottom.set_ylabel("ε of one record")
    bottom.set_ylim(0, max([row[2] for row in rows] + [target or 0.0]) * 1.12 or 1.0)
    drawing.client_axis(bottom, [row[0] for row in rows], "client, largest first")
    caption = "Numbers of records count as public; the guarantee is the largest ε."
    return Drawn("clients", "Data and ε of each client", caption, figure)


def _partition_figure(facts: RunFacts) -> Drawn | None:
    rows = facts.clients
    if not rows:
        return None
    caption = "Of the simulation: raw counts, which no guarantee covers."
    if all(number(row.get("foreground")) is not None for row in rows):
        figure, (top, bottom) = drawing.page_figure(3.4, 2, sharex=True)
        drawing.bars(top, [float(row["records"]) for row in rows], drawing.BLUE)
        drawing.bars(bottom, [100.0 * float(row["foreground"]) for row in rows], drawing.GREEN)
        top.set_ylabel("records")
        bottom.set_ylabel("foreground (%)")
        drawing.client_axis(bottom, [str(row.get("client", "")) for row in rows])
        return Drawn("partition", "Who holds what", caption, figure)
    names = list(dict.fromkeys(name for row in rows for name in numbers(row.get("classes"))))
    many = len(rows) > drawing.MOST_BARS
    rows = sorted(rows, key=lambda r: -float(r["records"])) if many else rows
    figure, (axes,) = drawing.page_figure(3.2 if len(names) > 4 else 2.8)
    counts = {name: [numbers(r.get("classes")).get(name, 0.0) for r in rows] for name in names}
    drawing.stacked_bars(axes, counts, named=len(names) <= MOST_NUMBERED)
    axes.set_ylabel("records")
    ordered = "client, largest first" if many else "client"
    drawing.client_axis(axes, [str(row.get("client", "")) for row in rows], ordered)
    drawing.legend_below(
        figure, axes, columns=5 if len(names) > 4 and max(map(len, names)) < 4 else 2
    )
    return Drawn("partition", "Who holds what", caption, figure)


def _confusion_figure(facts: RunFacts) -> Drawn | None:
    if facts.evaluation is None or "confusion" not in facts.evaluation:
        return None
    from matplotlib.patches import Rectangle

    names = [str(name) for name in facts.evaluation["class_names"]]
    matrix, count = facts.evaluation["confusion"], len(names)
    figure, (axes,) = drawing.page_figure(3.7)
    axes.grid(visible=False)
    for row, cells in enumerate(matrix):
        total = max(1, sum(cells))
        for column, cell in enumerate(cells):
            colour = drawing.BLUE if row == column else drawing.ORANGE
            share = cell / total
            axes.add_patch(
                Rectangle((column - 0.5, row - 0.5), 1, 1, color=colour, alpha=0.85 * share, lw=0)
            )
            if count <= MOST_NUMBERED and (cell or count <= 4):
                shown = f"{cell:,}" if count <= 4 else _short(cell)
                size = 12 if count <= 4 else 8.5
                axes.text(column, row, shown, ha="center", va="center", fontsize=size)
    axes.set_xlim(-0.5, count - 0.5)
    axes.set_ylim(count - 0.5, -0.5)
    axes.set_aspect("equal" if count > 3 else "auto")
    if count <= 30:
        upright = sum(map(len, names)) < 40
        axes.set_xticks(range(count), names, rotation=0 if upright else 60)
        axes.set_yticks(range(count), names)
        for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
            for label in labels:
                label.set_fontsize(8.5 if count <= 12 else 6)
    axes.set_xlabel("the model says")
    axes.set_ylabel("it is")
    counted = str(facts.evaluation.get("counted", "records"))
    caption = f"{counted.capitalize()} of the test set; colour is the share of a row."
    return Drawn("confusion", "What is taken for what", caption, figure)


def _predictions_figure(facts: RunFacts) -> Drawn | None:
    """Predicted against true, one square for each of a few targets."""
    if facts.evaluation is None or "targets" not in facts.evaluation:
        return None
    targets = facts.evaluation["targets"][:MOST_TARGETS]
    figure, panels = drawing.page_figure(3.7 * len(targets), len(targets))
    for axes, target in zip(panels, targets, strict=True):
        unit = f" ({target['unit']})" if target.get("unit") else ""
        low, high = (float(end) for end in target["range"])
        axes.plot([low, high], [low, high], color=drawing.MUTED, ls="--", lw=1.1)
        axes.scatter(
            target["truth"], target["predicted"], s=12, color=drawing.BLUE, alpha=0.6, lw=0
        )
        axes.set_xlabel(f"{target.get('name', 'target')} as it is{unit}")
        axes.set_ylabel(f"the model says{unit}")
    shown = max(len(target["truth"]) for target in targets)
    caption = f"{shown} records of the test set, one a point; on the line, the model is right."
    return Drawn("predictions", "Predicted against true", caption, figure)


def _short(count: int) -> str:
    """A count in at most four letters.

    >>> _short(812), _short(12_345), _short(3_400_000)
    ('812', '12k', '3.4M')
    """
    if count < 10_000:
        return str(count)
    return f"{count / 1000:.0f}k" if count < 1_000_000 else f"{count / 1e6:.1f}M"


def plot_metrics(rows: Rows, metric: str, title: str, path: Path) -> None:
    """The validation metric, the losses and ε by round, with the chosen model and its test result.

    A panel without a curve is left out; without any there is no picture.

    Args:
        rows: the lines of a run's `metrics.jsonl`.
        metric: the metric that chooses the model (`task.metric`).
        title: a line above the picture.
        path: where the PNG goes.
    """
    rounds = [row for row in rows if "round" in row]
    tests = {
        f"test, model of round {row['selected_round']}: {value:.3f}": value
        for row in rows
        if row.get("final") and (value := row["test"].get(metric)) is not None
    }
    panels: list[tuple[str, Callable[[Any], None]]] = []
    if by_round(rounds, "val", metric) or client_spread(rounds, metric):
        draw_it = partial(draw_metric, rounds=rounds, metric=metric, tests=tests)
        panels.append((metric.replace("_", " "), draw_it))
    for name, curves in (("loss", loss_curves(rounds)), ("ε spent", epsilon_curves(rounds))):
        if curves:
            panels.append((name, partial(draw_curves, curves=curves)))
    if not panels:
        return
    figure = drawing.new_figure(4.5 * len(panels), 3.6, title)
    drawn = figure.subplots(1, len(panels), squeeze=False)[0]
    for (name, draw), axes in zip(panels, drawn, strict=True):
        draw(axes)
        axes.set_ylabel(name)
        drawing.round_axis(axes)
        drawing.tidy(axes, "both")
        drawing.small_legend(axes)
    drawing.save_png(figure, path)


def draw_metric(axes: Any, rounds: Rows, metric: str, tests: Mapping[str, float]) -> None:
    """The validation metric, what clients have of it, and a line for each test result."""
    for index, (at, low, high) in enumerate(client_spread(rounds, metric)):
        label = "clients, worst to best" if index == 0 else None
        axes.plot([at, at], [low, high], color=drawing.MUTED, lw=4, alpha=0.4, label=label)
    draw_curves(axes, {"validation": (drawing.BLUE, by_round(rounds, "val", metric))})
    for label, value in tests.items():
        axes.axhline(value, color=drawing.PURPLE, ls="--", lw=1.3, label=label)


def client_spread(rounds: Rows, metric: str) -> list[tuple[int, float, float]]:
    """(round, smallest, largest) of a metric over the clients that published it."""
    found = []
    for row in rounds:
        clients = row.get("clients")
        held = clients.values() if isinstance(clients, Mapping) else ()
        values = [v for own in held if (v := numbers(own).get(metric)) is not None]
        if values:
            found.append((row["round"], min(values), max(values)))
    return found


def loss_curves(rounds: Rows, *, validation: bool = True) -> Curves:
    """Label, colour and points of the losses that there are."""
    curves = {"training, at the clients": (drawing.GREEN, by_round(rounds, "train_loss"))}
    if validation:
        curves["validation"] = (drawing.BLUE, by_round(rounds, "val", "loss"))
    return {label: curve for label, curve in curves.items() if curve[1]}


def epsilon_curves(rounds: Rows) -> Curves:
    """The same of what each level has spent."""
    curves = {
        ONE_UNIT[level]: (colour, by_round(rounds, "epsilon", level))
        for level, colour in drawing.LEVEL_COLOURS.items()
    }
    return {label: curve for label, curve in curves.items() if curve[1]}


def draw_curves(axes: Any, curves: Curves) -> None:
    """Every curve that has points."""
    for label, (colour, points) in curves.items():
        if points:
            drawing.curve(axes, points, colour, label)
