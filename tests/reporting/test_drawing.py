"""How everything is drawn: nothing global, colours that a page can change, and no lost points."""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib as mpl
import pytest
from PIL import Image

from dp_fedmed.reporting import drawing


def drawn(name: str = "one", label: str = "a & b") -> drawing.Drawn:
    with mpl.rc_context(drawing.PAGE_STYLE):
        figure, (axes,) = drawing.page_figure()
        drawing.curve(axes, [(0, 1.0), (1, 2.0)], drawing.BLUE, label)
        drawing.legend_below(figure, axes)
    return drawing.Drawn(name, "a title", "a caption", figure)


def test_a_figure_of_a_page_takes_the_pages_colours_and_has_text() -> None:
    text = drawn().inline()
    assert text.startswith("<svg")
    assert 'role="img" aria-labelledby="title-one"' in text
    assert "a &amp; b" in text
    assert "var(--s0)" in text
    assert drawing.BLUE not in text
    assert "<metadata>" not in text
    assert not re.search(r'<svg[^>]* width="', text), "it is as wide as its place"


def test_two_figures_of_one_page_share_no_id() -> None:
    ids = [set(re.findall(r' id="([^"]+)"', drawn(name).inline())) for name in ("one", "two")]
    assert ids[0]
    assert not ids[0] & ids[1]
    text = drawn("one").inline()
    for used in re.findall(r'(?:href="|url\()#([^")]+)', text):
        assert f'id="{used}"' in text


def test_the_same_figure_is_the_same_text() -> None:
    assert drawn().inline() == drawn().inline()


def test_a_figure_is_saved_for_a_paper_and_touches_nothing_global(tmp_path: Path) -> None:
    before = dict(mpl.rcParams)
    drawn().save(tmp_path)
    assert dict(mpl.rcParams) == before
    assert drawing.BLUE in (tmp_path / "one.svg").read_text()
    with Image.open(tmp_path / "one.png") as image:
        assert image.width == 840
        assert image.convert("RGB").getpixel((0, 0)) == (255, 255, 255)


def test_few_points_are_marked_and_many_are_not() -> None:
    axes = drawing.new_figure(3, 3).subplots()
    for count, marker in ((1, "o"), (30, "o"), (31, "")):
        drawing.curve(axes, [(n, n) for n in range(count)], drawing.BLUE, "")
        assert axes.lines[-1].get_marker() == marker


@pytest.mark.parametrize("count", [3, drawing.MOST_BARS + 1])
def test_stacked_parts_end_at_their_sum_as_bars_or_filled(count: int) -> None:
    axes = drawing.new_figure(3, 3).subplots()
    drawing.stacked_bars(axes, {"a": [1.0] * count, "b": [2.0] * count})
    assert bool(axes.patches) is (count <= drawing.MOST_BARS)
    assert axes.get_ylim()[1] == pytest.approx(3.0, rel=0.06)
    assert axes.get_legend_handles_labels()[1] == ["a", "b"]
    drawing.stacked_bars(axes, {}, named=False)


def test_every_series_has_a_colour_of_its_own() -> None:
    for count in (1, len(drawing.SERIES), 3 * len(drawing.SERIES)):
        colours = [drawing.series_colour(index, count) for index in range(count)]
        assert len(set(colours)) == count
    assert drawing.as_rgb("#ff0000") == (1.0, 0.0, 0.0)


def test_clients_are_numbered_where_there_is_room() -> None:
    axes = drawing.new_figure(3, 3).subplots()
    drawing.client_axis(axes, ["client-00000", "client-00012"])
    assert [text.get_text() for text in axes.get_xticklabels()] == ["0", "12"]
    drawing.client_axis(axes, ["hospital-north", "hospital-south"])
    assert list(axes.get_xticks()) == []


def test_there_is_no_empty_legend() -> None:
    figure = drawing.new_figure(3, 3, "a line")
    drawing.legend_below(figure, figure.subplots())
    assert figure.legends == []
    assert figure.get_suptitle() == "a line"
