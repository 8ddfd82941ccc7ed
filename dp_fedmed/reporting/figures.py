"""Figures of a run, each drawn once: into the page with the page's colours, and as PNG and SVG.

A figure is as wide as a telephone, so that its letters stay readable there.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dp_fedmed.reporting.run_facts import RunFacts, number, numbers
from dp_fedmed.reporting.words import direction, metric_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, GRID = "#1c2128", "#59646f", "#d5dbe1"
# Okabe and Ito's colours and two of Tol's, which colour-blind readers can tell apart.
SERIES = (
    *("#0072b2", "#d55e00", "#009e73", "#aa4499", "#e69f00"),
    *("#56b4e9", "#882255", "#999933", "#6e6e6e", "#332288"),
)
BLUE, ORANGE, GREEN, PURPLE = SERIES[:4]
LEVEL_COLOURS = {"sample": ORANGE, "user": GREEN}
MOST_BARS = 40
MOST_NUMBERED = 12
MOST_TARGETS = 4
_VARIABLES = {INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--grid)"} | {
    colour: f"var(--s{number})" for number, colour in enumerate(SERIES)
}
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # names of classes are not formulas
    "font.size": 9.5,
    "font.family": ["DejaVu Sans"],
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.titlecolor"), INK),
    **dict.fromkeys(("xtick.color", "ytick.color", "axes.edgecolor"), MUTED),
    "grid.color": GRID,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "savefig.transparent": True,
}


@dataclass(frozen=True)
class Drawn:
    """A figure with its file name, its heading and what it shows, for who cannot see it."""

    name: str
    title: str
    caption: str
    figure: Figure

    def inline(self) -> str:
        """SVG for a page: colours are the page's, ids are its own, text is text."""
        body = self._svg[self._svg.index("<svg") :]
        body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.S)
        body = re.sub(r"<!--.*?-->", "", body, flags=re.S)
        body = re.sub(r'\s(id|xlink:href|href)="(#?)', rf' \1="\g<2>{self.name}-', body)
        body = body.replace("url(#", f"url(#{self.name}-")
        body = re.sub(r"(font|font-family): ([\d.]+px )?'?DejaVu Sans'?[^;\"]*", _font, body)
        for colour, variable in _VARIABLES.items():
            body = body.replace(colour, variable)
        head, rest = body.split(">", 1)
        head = re.sub(r'\s(width|height)="[^"]*"', "", head)
        return f'{head} role="img" aria-labelledby="title-{self.name}">{rest}'

    def save(self, folder: Path) -> None:
        """PNG and SVG on white, for a paper."""
        (folder / f"{self.name}.svg").write_text(self._svg, encoding="utf-8")
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        FigureCanvasAgg(self.figure)
        self.figure.savefig(folder / f"{self.name}.png", dpi=200, facecolor="white")

    @functools.cached_property
    def _svg(self) -> str:
        from matplotlib import rc_context
        from matplotlib.backends.backend_svg import FigureCanvasSVG

        held = BytesIO()
        with rc_context({"svg.fonttype": "none", "svg.hashsalt": self.name}):
            FigureCanvasSVG(self.figure)
            self.figure.savefig(held, format="svg", metadata={"Date": None}, transparent=True)
        return held.getvalue().decode()


def _font(found: re.Match[str]) -> str:
    return f"{'font-size' if found[2] else 'font-family'}: {found[2] or 'inherit'}".strip()


def run_figures(facts: RunFacts, *, records: bool = True) -> list[Drawn]:
    """Every figure that a run has the facts for; `records` allows those that show test records."""
    from matplotlib import rc_context

    with rc_context(STYLE):
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


def blank(height: float = 2.8, rows: int = 1, **settings: Any) -> tuple[Figure, list[Axes]]:
    """A figure and its axes, one above the other."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2, height), layout="constrained")
    axes = figure.subplots(rows, 1, squeeze=False, **settings)[:, 0]
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
        each.grid(axis="y", linewidth=0.6)
        each.set_axisbelow(True)
    return figure, list(axes)


def legend_below(figure: Figure, axes: Axes, columns: int = 2) -> None:
    """A legend that covers nothing."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def _epsilon_figure(facts: RunFacts) -> Drawn | None:
    curves = {level: facts.epsilons(level) for level in LEVEL_COLOURS}
    curves = {level: points for level, points in curves.items() if points}
    if not curves:
        return None
    figure, (axes,) = blank()
    for level, points in curves.items():
        colour, what = LEVEL_COLOURS[level], {"sample": "one record", "user": "one client"}[level]
        axes.plot(*zip(*points, strict=True), color=colour, lw=2, label=what, **_dots(points))
        target = facts.target(level)
        if target is not None:
            axes.axhline(target, color=colour, ls="--", lw=1.1, label=f"its target {target:g}")
    axes.set_ylim(0, None)
    axes.set_ylabel("ε spent")
    _rounds(axes)
    legend_below(figure, axes)
    return Drawn("epsilon", "ε over rounds", "What each level has spent after every round.", figure)


def _metric_figure(facts: RunFacts) -> Drawn | None:
    metric, name = facts.metric, metric_name(facts.metric)
    points = _points(facts, metric)
    spread = [
        (
            row["round"],
            sorted(v for m in held.values() if (v := numbers(m).get(metric)) is not None),
        )
        for row in facts.rounds
        if isinstance(held := row.get("clients"), dict)
    ]
    spread = [(at, values) for at, values in spread if values]
    test = facts.test.get(metric)
    if not points and not spread and test is None:
        return None
    figure, (axes,) = blank()
    for index, (at, values) in enumerate(spread):
        label = "clients, worst to best" if index == 0 else None
        axes.plot([at, at], [values[0], values[-1]], color=MUTED, lw=4, alpha=0.4, label=label)
    if points:
        axes.plot(*zip(*points, strict=True), color=BLUE, lw=2, label="validation", **_dots(points))
    if test is not None:
        axes.axhline(test, color=PURPLE, ls="--", lw=1.3, label=f"test, final model: {test:.3f}")
    axes.set_ylabel(name)
    _rounds(axes)
    legend_below(figure, axes)
    caption = (
        "On the server's own validation records; on its test records once per part of the run."
    )
    caption += direction(metric)
    return Drawn("metric", f"{name[:1].upper()}{name[1:]} by round", caption, figure)


def _loss_figure(facts: RunFacts) -> Drawn | None:
    training = [
        (r["round"], v) for r in facts.rounds if (v := number(r.get("train_loss"))) is not None
    ]
    validation = _points(facts, "loss") if facts.metric != "loss" else []
    if not training and not validation:
        return None
    figure, (axes,) = blank()
    for label, colour, points in (
        ("training, at the clients", GREEN, training),
        ("validation", BLUE, validation),
    ):
        if points:
            axes.plot(*zip(*points, strict=True), color=colour, lw=2, label=label, **_dots(points))
    axes.set_ylabel("loss")
    _rounds(axes)
    legend_below(figure, axes)
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
    figure, (top, bottom) = blank(3.6, 2, sharex=True)
    _bars(top, [row[1] for row in rows], BLUE)
    _bars(bottom, [row[2] for row in rows], ORANGE)
    target = facts.target("sample")
    if target is not None:
        bottom.axhline(target, color=ORANGE, ls="--", lw=1.1)
    top.set_ylabel("records")
    bottom.set_ylabel("ε of one record")
    bottom.set_ylim(0, max([row[2] for row in rows] + [target or 0.0]) * 1.12 or 1.0)
    _client_ticks(bottom, [row[0] for row in rows], "client, largest first")
    caption = "Numbers of records count as public; the guarantee is the largest ε."
    return Drawn("clients", "Data and ε of each client", caption, figure)


def _partition_figure(facts: RunFacts) -> Drawn | None:
    rows = facts.clients
    if not rows:
        return None
    caption = "Of the simulation: raw counts, which no guarantee covers."
    if all(number(row.get("foreground")) is not None for row in rows):
        figure, (top, bottom) = blank(3.4, 2, sharex=True)
        _bars(top, [float(row["records"]) for row in rows], BLUE)
        _bars(bottom, [100.0 * float(row["foreground"]) for row in rows], GREEN)
        top.set_ylabel("records")
        bottom.set_ylabel("foreground (%)")
        _client_ticks(bottom, [str(row.get("client", "")) for row in rows])
        return Drawn("partition", "Who holds what", caption, figure)
    names = list(dict.fromkeys(name for row in rows for name in numbers(row.get("classes"))))
    rows = sorted(rows, key=lambda r: -float(r["records"])) if len(rows) > MOST_BARS else rows
    figure, (axes,) = blank(3.2 if len(names) > 4 else 2.8)
    places, base = list(range(len(rows))), [0.0] * len(rows)
    for index, name in enumerate(names):
        counts = [numbers(row.get("classes")).get(name, 0.0) for row in rows]
        after = [low + count for low, count in zip(base, counts, strict=True)]
        colour = SERIES[index % len(SERIES)]
        label = name if len(names) <= MOST_NUMBERED else None
        if len(rows) > MOST_BARS:
            axes.fill_between(places, base, after, color=colour, step="mid", lw=0, label=label)
        else:
            axes.bar(places, counts, bottom=base, color=colour, width=0.8, label=label)
        base = after
    axes.set_ylabel("records")
    many = len(rows) > MOST_BARS
    ordered = "client, largest first" if many else "client"
    _client_ticks(axes, [str(row.get("client", "")) for row in rows], ordered)
    legend_below(figure, axes, columns=5 if len(names) > 4 and max(map(len, names)) < 4 else 2)
    return Drawn("partition", "Who holds what", caption, figure)


def _confusion_figure(facts: RunFacts) -> Drawn | None:
    if facts.evaluation is None or "confusion" not in facts.evaluation:
        return None
    from matplotlib.patches import Rectangle

    names = [str(name) for name in facts.evaluation["class_names"]]
    matrix, count = facts.evaluation["confusion"], len(names)
    figure, (axes,) = blank(3.7)
    axes.grid(visible=False)
    for row, cells in enumerate(matrix):
        total = max(1, sum(cells))
        for column, cell in enumerate(cells):
            colour = BLUE if row == column else ORANGE
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
    figure, panels = blank(3.7 * len(targets), len(targets))
    for axes, target in zip(panels, targets, strict=True):
        unit = f" ({target['unit']})" if target.get("unit") else ""
        low, high = (float(end) for end in target["range"])
        axes.plot([low, high], [low, high], color=MUTED, ls="--", lw=1.1)
        axes.scatter(target["truth"], target["predicted"], s=12, color=BLUE, alpha=0.6, lw=0)
        axes.set_xlabel(f"{target.get('name', 'target')} as it is{unit}")
        axes.set_ylabel(f"the model says{unit}")
    shown = max(len(target["truth"]) for target in targets)
    caption = f"{shown} records of the test set, one a point; on the line, the model is right."
    return Drawn("predictions", "Predicted against true", caption, figure)


def _points(facts: RunFacts, metric: str) -> list[tuple[int, float]]:
    pairs = ((r["round"], numbers(r.get("val")).get(metric)) for r in facts.rounds)
    return [(at, value) for at, value in pairs if value is not None]


def _dots(points: list[tuple[int, float]]) -> dict[str, Any]:
    """A curve of few points shows them: one point alone would be invisible."""
    return {"marker": "o", "ms": 4} if len(points) <= 30 else {}


def _rounds(axes: Axes) -> None:
    axes.set_xlabel("round")
    axes.xaxis.get_major_locator().set_params(integer=True)  # type: ignore[call-arg]


def _bars(axes: Axes, values: list[float], colour: str) -> None:
    places = list(range(len(values)))
    if len(values) > MOST_BARS:
        axes.fill_between(places, values, step="mid", color=colour, alpha=0.85, lw=0)
        axes.set_ylim(0, None)
    else:
        axes.bar(places, values, color=colour, width=0.8)


def _client_ticks(axes: Axes, names: list[str], label: str = "client") -> None:
    short = [name.removeprefix("client-").lstrip("0") or "0" for name in names]
    if len(names) <= 15 and max(map(len, short)) <= 4:
        axes.set_xticks(range(len(names)), short)
    elif len(names) > MOST_BARS:
        axes.xaxis.get_major_locator().set_params(integer=True)  # type: ignore[call-arg]
    else:
        axes.set_xticks([])
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.set_xlabel(label)


def _short(count: int) -> str:
    """A count in at most four letters.

    >>> _short(812), _short(12_345), _short(3_400_000)
    ('812', '12k', '3.4M')
    """
    if count < 10_000:
        return str(count)
    return f"{count / 1000:.0f}k" if count < 1_000_000 else f"{count / 1e6:.1f}M"
