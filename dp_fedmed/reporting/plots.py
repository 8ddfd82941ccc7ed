"""Pictures of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Okabe and Ito's colours, which colour-blind readers can tell apart.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#6E6E6E"


def plot_metrics(rows: Sequence[dict[str, Any]], metric: str, title: str, path: Path) -> None:
    """The validation metric and the losses by round, with the chosen model and its test result.

    Args:
        rows: the lines of a run's `metrics.jsonl`.
        metric: the metric that chooses the model (`task.metric`).
        title: a line above the picture.
        path: where the PNG goes.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rounds = [row for row in rows if "round" in row]
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    _metric_panel(left, rounds, [row for row in rows if row.get("final")], metric)
    _loss_panel(right, rounds)
    for axes in (left, right):
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


def _loss_panel(axes: Any, rounds: list[dict[str, Any]]) -> None:
    for name, colour, points in (
        ("training, at the clients", GREEN, [(r["round"], r.get("train_loss")) for r in rounds]),
        ("validation", BLUE, [(r["round"], r.get("val", {}).get("loss")) for r in rounds]),
    ):
        known = [point for point in points if point[1] is not None]
        if known:
            axes.plot(*zip(*known, strict=True), color=colour, label=name)
    axes.set_ylabel("loss")
    if axes.lines:
        axes.legend(frameon=False, fontsize=8)
