"""Pictures of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

# Okabe and Ito's colours, which colour-blind readers can tell apart.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#6E6E6E"


def plot_metrics(rows: Sequence[dict[str, Any]], metric: str, title: str, path: Path) -> None:
    """The validation metric, the losses and ε by round, with the chosen model and its test result.

    A panel without a curve is left out; without any there is no picture.

    Args:
        rows: the lines of a run's `metrics.jsonl`.
        metric: the metric that chooses the model (`task.metric`).
        title: a line above the picture.
        path: where the PNG goes.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rounds = [row for row in rows if "round" in row]
    final = [row for row in rows if row.get("final")]
    panels: list[Callable[[Any], None]] = []
    if any(metric in r.get("val", {}) or r.get("clients") for r in rounds):
        panels.append(lambda axes: _metric_panel(axes, rounds, final, metric))
    losses = _losses(rounds)
    if losses:
        panels.append(lambda axes: _curves(axes, losses, "loss"))
    spent = _spent(rounds)
    if spent:
        panels.append(lambda axes: _curves(axes, spent, "ε spent"))
    if not panels:
        return
    figure = Figure(figsize=(4.5 * len(panels), 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    drawn = figure.subplots(1, len(panels), squeeze=False)[0]
    for draw, axes in zip(panels, drawn, strict=True):
        draw(axes)
        axes.set_xlabel("round")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.get_major_locator().set_params(integer=True)
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=140)


def _metric_panel(
    axes: Any, rounds: list[dict[str, Any]], final: list[dict[str, Any]], metric: str
) -> None:
    points = [(r["round"], r["val"][metric]) for r in rounds if metric in r.get("val", {})]
    axes.plot(*zip(*points, strict=True), color=BLUE, label="validation") if points else None
    spread = [
        (r["round"], sorted(m[metric] for m in r["clients"].values() if metric in m))
        for r in rounds
        if r.get("clients")
    ]
    for number, (at, values) in enumerate([pair for pair in spread if pair[1]]):
        label = "clients, worst to best" if number == 0 else None
        axes.plot([at, at], [values[0], values[-1]], color=GREY, lw=3, alpha=0.35, label=label)
    for row in final:
        if metric in row["test"]:
            axes.axhline(
                row["test"][metric],
                color=ORANGE,
                ls="--",
                lw=1.2,
                label=f"test, model of round {row['selected_round']}: {row['test'][metric]:.3f}",
            )
    axes.set_ylabel(metric.replace("_", " "))
    if axes.lines:
        axes.legend(frameon=False, fontsize=8, loc="lower right")


Curve = tuple[str, str, list[tuple[int, float]]]


def _losses(rounds: list[dict[str, Any]]) -> list[Curve]:
    """(label, colour, points) of the losses that there are."""
    return _known(
        ("training, at the clients", GREEN, [(r["round"], r.get("train_loss")) for r in rounds]),
        ("validation", BLUE, [(r["round"], r.get("val", {}).get("loss")) for r in rounds]),
    )


def _spent(rounds: list[dict[str, Any]]) -> list[Curve]:
    """The same of what each level has spent."""
    return _known(
        *(
            (label, colour, [(r["round"], r.get("epsilon", {}).get(level)) for r in rounds])
            for level, label, colour in (
                ("sample", "one record", ORANGE),
                ("user", "one client", GREEN),
            )
        )
    )


def _known(*curves: tuple[str, str, list[tuple[int, float | None]]]) -> list[Curve]:
    found = []
    for label, colour, points in curves:
        known = [(at, value) for at, value in points if value is not None]
        if known:
            found.append((label, colour, known))
    return found


def _curves(axes: Any, curves: list[Curve], what: str) -> None:
    for label, colour, points in curves:
        axes.plot(*zip(*points, strict=True), color=colour, label=label)
    axes.set_ylabel(what)
    axes.legend(frameon=False, fontsize=8)
