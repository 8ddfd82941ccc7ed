"""How everything is drawn: the palette, figures for PNG files, and figures for pages.

A figure is never pyplot's: nothing global is touched, and any backend stays as it is.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dp_fedmed.privacy.accounting.events import Level

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

INK, MUTED, GRID = "#1c2128", "#59646f", "#d5dbe1"
# Okabe and Ito's colours and some of Tol's, which colour-blind readers can tell apart.
SERIES = (
    *("#0072b2", "#d55e00", "#009e73", "#aa4499", "#e69f00"),
    *("#56b4e9", "#882255", "#999933", "#6e6e6e", "#332288"),
)
BLUE, ORANGE, GREEN, PURPLE = SERIES[:4]
GREY = SERIES[8]
LEVEL_COLOURS: dict[str, str] = {Level.sample: ORANGE, Level.user: GREEN}
#: Colour maps: of shares, of anomaly scores, and of images with one channel.
SHARES, HEAT, BRIGHTNESS = "cividis", "inferno", "gray"
#: From so many bars on, a filled curve is drawn instead.
MOST_BARS = 40
_VARIABLES = {INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--grid)"} | {
    colour: f"var(--s{number})" for number, colour in enumerate(SERIES)
}
PAGE_STYLE: dict[Any, Any] = {
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
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Drawn:
    """A figure of a page, with its file name, its heading and a caption that says what it shows."""

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
        save_png(self.figure, folder / f"{self.name}.png", dpi=200, facecolor="white")

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


def new_figure(width: float, height: float, title: str = "", **settings: Any) -> Figure:
    """A figure of so many inches, with a line above it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), **({"layout": "constrained"} | settings))
    if title:
        figure.suptitle(title, fontsize=11)
    return figure


def save_png(figure: Figure, path: Path, dpi: int = 140, **settings: Any) -> None:
    """Write a figure into a PNG file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    figure.savefig(path, dpi=dpi, **settings)


def page_figure(height: float = 2.8, rows: int = 1, **settings: Any) -> tuple[Figure, list[Axes]]:
    """A page's figure and its axes, one above the other; drawn within `PAGE_STYLE`.

    It is as wide as a telephone, so that its letters stay readable there.
    """
    figure = new_figure(4.2, height)
    axes = list(figure.subplots(rows, 1, squeeze=False, **settings)[:, 0])
    for each in axes:
        tidy(each, "y")
    return figure, axes


def tidy(axes: Axes, grid: Literal["x", "y", "both"] | None = None) -> None:
    """Leave out the frame above and on the right; on request, draw a grid behind everything."""
    axes.spines[["top", "right"]].set_visible(False)
    if grid is not None:
        axes.grid(axis=grid, color=GRID, linewidth=0.6)
        axes.set_axisbelow(True)


def small_legend(axes: Axes, **settings: Any) -> None:
    """A legend within the axes of a PNG."""
    axes.legend(frameon=False, fontsize=8, **settings)


def legend_below(figure: Figure, axes: Axes, columns: int = 2) -> None:
    """A legend that covers nothing."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def whole_numbers(axis: Axis) -> None:
    """Ticks at whole numbers only."""
    axis.get_major_locator().set_params(integer=True)  # type: ignore[call-arg]


def round_axis(axes: Axes) -> None:
    """Rounds from left to right."""
    axes.set_xlabel("round")
    whole_numbers(axes.xaxis)


def curve(axes: Axes, points: Points, colour: str, label: str) -> None:
    """A curve; one of few points shows them, since one point alone would be invisible."""
    marker = "o" if len(points) <= 30 else ""
    axes.plot(*zip(*points, strict=True), color=colour, label=label, lw=2, marker=marker, ms=4)


def bars(axes: Axes, values: Sequence[float], colour: Any, **settings: Any) -> None:
    """Bars side by side, or a filled curve if there are many."""
    places = list(range(len(values)))
    if len(values) > MOST_BARS:
        base = settings.pop("bottom", [0.0] * len(values))
        tops = [low + value for low, value in zip(base, values, strict=True)]
        axes.set_autoscaley_on(True)  # the part below this one has fixed the top
        axes.fill_between(places, base, tops, step="mid", color=colour, lw=0, **settings)
        axes.set_ylim(0, None)
    else:
        axes.bar(places, values, color=colour, width=0.8, **settings)


def stacked_bars(axes: Axes, columns: Mapping[str, Sequence[float]], *, named: bool = True) -> None:
    """Bars of several parts, one colour for each; `named` gives the parts a label."""
    base = [0.0] * len(next(iter(columns.values()), ()))
    for index, (name, values) in enumerate(columns.items()):
        colour = series_colour(index, len(columns))
        bars(axes, values, colour, bottom=base, label=name if named else None)
        base = [low + value for low, value in zip(base, values, strict=True)]


def series_colour(index: int, count: int) -> Any:
    """The colour of one of so many series; of more than the palette has, from a colour map."""
    if count <= len(SERIES):
        return SERIES[index]
    from matplotlib import colormaps

    return colormaps[SHARES](index / (count - 1))


def client_axis(axes: Axes, names: Sequence[str], label: str = "client", most: int = 15) -> None:
    """Clients from left to right, by their number as far as there is room."""
    short = [name.removeprefix("client-").lstrip("0") or "0" for name in names]
    in_order = short == [str(place) for place in range(len(short))]
    if len(names) <= most and max(map(len, short)) <= 4:
        axes.set_xticks(range(len(names)), short)
    elif in_order or len(names) > MOST_BARS:
        whole_numbers(axes.xaxis)
    else:
        axes.set_xticks([])
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.set_xlabel(label)


def as_rgb(colour: str) -> tuple[float, float, float]:
    """A colour of the palette as an image has it."""
    from matplotlib.colors import to_rgb

    return to_rgb(colour)
