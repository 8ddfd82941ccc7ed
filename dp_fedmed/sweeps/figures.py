"""Figures of a sweep: what accuracy there is for which ε, and every setting side by side."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from dp_fedmed.reporting import drawing
from dp_fedmed.reporting.drawing import Drawn
from dp_fedmed.reporting.words import ONE_UNIT, direction, metric_name
from dp_fedmed.sweeps.facts import Setting, SweepFacts
from dp_fedmed.sweeps.summary import TaskSummary, by_epsilon, summarize

MOST_SETTINGS = 30
BASELINE_STYLES = ("--", ":", "-.")
ERROR_BARS: dict[str, Any] = {"marker": "o", "capsize": 3, "elinewidth": 1.3}


def sweep_figures(facts: SweepFacts) -> list[Drawn]:
    """Curves by task and level, then all settings of each task."""
    from matplotlib import rc_context

    found, tasks = [], summarize(facts).tasks
    with rc_context(drawing.PAGE_STYLE):
        for task in tasks:
            title = f" ({task.task})" if len(tasks) > 1 else ""
            found += [_curve(task, level, title) for level in task.levels]
            if 1 < len(task.settings) <= MOST_SETTINGS:
                found.append(_side_by_side(task, title))
    return found


def _colours(settings: Sequence[Setting]) -> dict[tuple[str, ...], str]:
    """By line, the same in all figures of a task; what has no guarantee is grey."""
    private = dict.fromkeys(s.first.line for s in settings if s.is_private)
    chosen = {
        line: drawing.SERIES[index % len(drawing.SERIES)] for index, line in enumerate(private)
    }
    return {s.first.line: chosen.get(s.first.line, drawing.MUTED) for s in settings}


def _curve(task: TaskSummary, level: str, title: str) -> Drawn:
    figure, (axes,) = drawing.page_figure(3.2)
    known, colours = by_epsilon(task.settings, level), _colours(task.settings)
    lines = {s.first.line: s.line_label for s in task.settings if by_epsilon([s], level)}
    for line, label in lines.items():
        points = [(epsilon, s.test) for epsilon, s in known if s.first.line == line]
        axes.errorbar(
            [epsilon for epsilon, _ in points],
            [test.mean for _, test in points],
            yerr=[test.sd or 0.0 for _, test in points],
            color=colours[line],
            label=label,
            lw=2,
            ms=4.5,
            **ERROR_BARS,
        )
    for setting, shape in zip(task.without_privacy, BASELINE_STYLES, strict=False):
        test, label = setting.test, f"no privacy, {setting.first.where}"
        axes.axhline(test.mean, color=drawing.MUTED, ls=shape, lw=1.4, label=label)
        if test.sd:
            axes.axhspan(
                test.mean - test.sd, test.mean + test.sd, color=drawing.MUTED, alpha=0.12, lw=0
            )
    _epsilon_axis(axes, [epsilon for epsilon, _ in known])
    axes.set_xlabel(f"ε for {ONE_UNIT[level]}")
    metric = metric_name(task.metric)
    axes.set_ylabel(f"test {metric}")
    drawing.legend_below(figure, axes, columns=1 if max(map(len, lines.values())) > 22 else 2)
    return Drawn(
        f"curve_{_slug(task.task)}_{level}",
        f"What {metric} there is for which ε{title}",
        f"ε for {ONE_UNIT[level]}; mean and standard deviation over seeds."
        + direction(task.metric),
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


def _side_by_side(task: TaskSummary, title: str) -> Drawn:
    settings, colours = task.settings, _colours(task.settings)
    figure, (axes,) = drawing.page_figure(1.0 + 0.27 * len(settings))
    for place, setting in enumerate(settings):
        axes.errorbar(
            [setting.test.mean],
            [place],
            xerr=[setting.test.sd or 0.0],
            color=colours[setting.first.line],
            ms=5,
            ls="none",
            **ERROR_BARS,
        )
    axes.set_yticks(range(len(settings)), [_shortened(s.label) for s in settings], fontsize=8.5)
    axes.set_ylim(len(settings) - 0.5, -0.5)
    drawing.tidy(axes, "both")
    axes.set_xlabel(f"test {metric_name(task.metric)}")
    return Drawn(
        f"settings_{_slug(task.task)}",
        f"Every setting{title}",
        f"Mean and standard deviation over seeds.{direction(task.metric)}",
        figure,
    )


def _shortened(label: str) -> str:
    return label if len(label) <= 30 else f"{label[:29]}…"


def _slug(text: str) -> str:
    return re.sub(r"\W+", "_", text)[:40] or "task"
