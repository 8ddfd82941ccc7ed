"""A plan as a picture: ε by round against its target, and the noise of each client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dp_fedmed.planning.forecast import Forecast
from dp_fedmed.reporting import drawing
from dp_fedmed.reporting.words import ONE_UNIT

MOST_BARS = 30


def plot_plan(made: Forecast, path: Path) -> None:
    """Write the picture; without privacy it shows the clients' sizes alone."""
    panels = [panel for panel in (_spending, _noise) if panel is _noise or made.curves]
    config = made.config
    title = (
        f"{config.task.name}, privacy {config.privacy.style}: {config.federation.num_clients} "
        f"clients, {made.rounds} rounds"
    )
    figure = drawing.new_figure(5.2 * len(panels), 3.8, title)
    for panel, axes in zip(panels, figure.subplots(1, len(panels), squeeze=False)[0], strict=True):
        panel(axes, made)
        drawing.tidy(axes, "y")
    drawing.save_png(figure, path)


def _spending(axes: Any, made: Forecast) -> None:
    """ε of what binds, by round."""
    for level, points in made.curves.items():
        spent = made.levels[level]
        rounds, epsilons = zip(*points, strict=True)
        colour = drawing.LEVEL_COLOURS[level]
        axes.plot([0, *rounds], [0.0, *epsilons], color=colour, lw=2, label=ONE_UNIT[level])
        axes.scatter(rounds[-1], epsilons[-1], color=colour, s=18, zorder=3)
        axes.annotate(
            f"{epsilons[-1]:.2f}",
            (rounds[-1], epsilons[-1]),
            (0, -12),
            textcoords="offset points",
            fontsize=8,
            ha="center",
            color=colour,
        )
        if spent.target is not None:
            axes.axhline(spent.target, color=colour, ls="--", lw=1, alpha=0.8)
            axes.annotate(
                f"target {spent.target:g}",
                (0.01, spent.target),
                (0, 2),
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                fontsize=8,
                color=colour,
            )
    drawing.round_axis(axes)
    axes.set_ylabel(f"ε spent at most ({made.curves_by.upper()})")
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    drawing.small_legend(axes, loc="lower right")


def _noise(axes: Any, made: Forecast) -> None:
    """σ of each client, or of each size of client; unprotected, how many records each has."""
    if not made.groups:
        sizes = sorted(made.records.values())
        axes.bar(range(len(sizes)), sizes, color=drawing.GREY, width=0.8)
        axes.set_xlabel("clients, smallest first")
        axes.set_ylabel("training records")
        axes.set_xticks([])
        return
    axes.set_ylabel("noise multiplier σ")
    if len(made.groups) > MOST_BARS:
        _noise_by_size(axes, made)
        return
    one_by_one = len(made.records) <= MOST_BARS
    rows = [
        (f"{name.removeprefix('client-')}\n{group.plan.records}", group)
        for group in made.groups
        for name in (group.names if one_by_one else [f"{len(group.names)} ×"])
    ]
    colours = [drawing.ORANGE if group is made.binding else drawing.BLUE for _, group in rows]
    sigmas = [group.spending.sigma for _, group in rows]
    axes.bar(range(len(rows)), sigmas, color=colours, width=0.7)
    turned = 90 if len(rows) > 10 else 0
    axes.set_xticks(range(len(rows)), [tick for tick, _ in rows], fontsize=7, rotation=turned)
    axes.set_xlim(-0.8, max(len(rows), 3) - 0.2)
    what = "client and its training records" if one_by_one else "clients × their training records"
    axes.set_xlabel(f"{what} (orange: binds)")


def _noise_by_size(axes: Any, made: Forecast) -> None:
    points = [(group.plan.records, group.spending.sigma) for group in made.groups]
    axes.scatter(*zip(*points, strict=True), s=14, color=drawing.BLUE, alpha=0.7, linewidths=0)
    if made.binding is not None:
        at = (made.binding.plan.records, made.binding.spending.sigma)
        axes.scatter(*at, s=36, color=drawing.ORANGE, label="binds", zorder=3)
    axes.set_xlabel("training records of a client")
    axes.set_ylim(bottom=0)
    drawing.small_legend(axes)
