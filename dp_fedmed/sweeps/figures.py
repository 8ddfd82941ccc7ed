"""Figures of a sweep: what accuracy there is for which ε, and every setting side by side."""

from __future__ import annotations

import re
from typing import Any

from dp_fedmed.reporting.drawing import (
    MUTED,
    PAGE_STYLE,
    SERIES,
    Drawn,
    legend_below,
    page_figure,
    tidy,
)
from dp_fedmed.reporting.words import direction, metric_name
from dp_fedmed.sweeps.facts import Setting, Spread, SweepFacts
from dp_fedmed.sweeps.words import UNIT_OF

MOST_SETTINGS = 30
BASELINE_STYLES = ("--", ":", "-.")


def sweep_figures(facts: SweepFacts) -> list[Drawn]:
    """Curves by task and level, then all settings of each task."""
    from matplotlib import rc_context

    found = []
    with rc_context(PAGE_STYLE):
        for task in facts.tasks:
            settings = facts.settings(task)
            title = f" ({task})" if len(facts.tasks) > 1 else ""
            for level in facts.levels(task):
                found.append(_curve(settings, level, task, title))
            if 1 < len(settings) <= MOST_SETTINGS:
                found.append(_side_by_side(settings, task, title))
    return found


def _colours(settings: list[Setting]) -> dict[tuple[str, ...], str]:
    """By line, the same in all figures of a task; what has no guarantee is grey."""
    private = dict.fromkeys(s.first.line for s in settings if s.is_private)
    chosen = {line: SERIES[index % len(SERIES)] for index, line in enumerate(private)}
    return {s.first.line: chosen.get(s.first.line, MUTED) for s in settings}


def _curve(settings: list[Setting], level: str, task: str, title: str) -> Drawn:
    figure, (axes,) = page_figure(3.2)
    lines: dict[tuple[str, ...], list[tuple[float, Spread]]] = {}
    labels: dict[tuple[str, ...], str] = {}
    for setting in settings:
        epsilon = setting.epsilon(level)
        if setting.is_private and epsilon is not None:
            lines.setdefault(setting.first.line, []).append((epsilon, setting.test))
            labels[setting.first.line] = setting.line_label
    colours = _colours(settings)
    for line, points in lines.items():
        points.sort(key=lambda point: point[0])
        axes.errorbar(
            [epsilon for epsilon, _ in points],
            [test.mean for _, test in points],
            yerr=[test.sd or 0.0 for _, test in points],
            color=colours[line],
            label=labels[line],
            lw=2,
            marker="o",
            ms=4.5,
            capsize=3,
            elinewidth=1.3,
        )
    open_ones = [s for s in settings if s.first.style == "none"]
    for index, setting in enumerate(open_ones[:3]):
        test = setting.test
        label = f"no privacy, {setting.first.topology.replace('_', ' ')}"
        shape = BASELINE_STYLES[index % len(BASELINE_STYLES)]
        axes.axhline(test.mean, color=MUTED, ls=shape, lw=1.4, label=label)
        if test.sd:
            axes.axhspan(test.mean - test.sd, test.mean + test.sd, color=MUTED, alpha=0.12, lw=0)
    spent = [epsilon for points in lines.values() for epsilon, _ in points]
    _epsilon_axis(axes, spent)
    axes.set_xlabel(f"ε for {UNIT_OF[level]}")
    metric = metric_name(settings[0].first.metric)
    axes.set_ylabel(f"test {metric}")
    legend_below(figure, axes, columns=1 if max(map(len, labels.values())) > 22 else 2)
    return Drawn(
        f"curve_{_slug(task)}_{level}",
        f"What {metric} there is for which ε{title}",
        f"ε for {UNIT_OF[level]}; mean and standard deviation over seeds."
        + direction(settings[0].first.metric),
        figure,
    )


def _epsilon_axis(axes: Any, spent: list[float]) -> None:
    """Logarithmic where ε differs by much, with plain numbers."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullFormatter

    shown = sorted({float(f"{epsilon:.2g}") for epsilon in spent if epsilon > 0})
    if not shown or shown[-1] / shown[0] < 4:
        return
    axes.set_xscale("log")
    kept = [shown[0]]
    for value in shown[1:]:
        if value / kept[-1] > (shown[-1] / shown[0]) ** 0.09:
            kept.append(value)
    axes.xaxis.set_major_locator(FixedLocator(kept))
    axes.xaxis.set_major_formatter(FixedFormatter([f"{value:g}" for value in kept]))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis="x", which="minor", length=0)


def _side_by_side(settings: list[Setting], task: str, title: str) -> Drawn:
    figure, (axes,) = page_figure(1.0 + 0.27 * len(settings))
    metric = metric_name(settings[0].first.metric)
    colours = _colours(settings)
    for place, setting in enumerate(settings):
        axes.errorbar(
            [setting.test.mean],
            [place],
            xerr=[setting.test.sd or 0.0],
            color=colours[setting.first.line],
            marker="o",
            ms=5,
            capsize=3,
            elinewidth=1.3,
            ls="none",
        )
    axes.set_yticks(range(len(settings)), [_shortened(s.label) for s in settings])
    for label in axes.get_yticklabels():
        label.set_fontsize(8.5)
    axes.set_ylim(len(settings) - 0.5, -0.5)
    tidy(axes, "both")
    axes.set_xlabel(f"test {metric}")
    return Drawn(
        f"settings_{_slug(task)}",
        f"Every setting{title}",
        f"Mean and standard deviation over seeds.{direction(settings[0].first.metric)}",
        figure,
    )


def _shortened(label: str) -> str:
    return label if len(label) <= 30 else f"{label[:29]}…"


def _slug(text: str) -> str:
    return re.sub(r"\W+", "_", text)[:40] or "task"
