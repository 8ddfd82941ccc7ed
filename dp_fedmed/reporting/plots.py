"""`metrics.png`: the metric, the losses and ε of a run by round; pages draw the same curves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dp_fedmed.reporting import drawing
from dp_fedmed.reporting.drawing import Points
from dp_fedmed.reporting.run_facts import by_round, numbers
from dp_fedmed.reporting.words import ONE_UNIT

Rows = Sequence[Mapping[str, Any]]
Curves = dict[str, tuple[str, Points]]


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
