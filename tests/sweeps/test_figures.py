"""The figures of a sweep: a curve for each level, and settings side by side."""

from __future__ import annotations

from pathlib import Path

import pytest

from dp_fedmed.sweeps.facts import facts_of
from dp_fedmed.sweeps.figures import MOST_SETTINGS, sweep_figures
from tests.sweeps.rows import PRIVATE, row


def names(path: Path, settings: int, **more: object) -> list[str]:
    rows = [
        row(n, {"training.lr": 1.0 + n, "privacy": "sample"}, 0.9, **{**PRIVATE, **more})
        for n in range(settings)
    ]
    return [drawn.name for drawn in sweep_figures(facts_of(path, rows))]


@pytest.mark.parametrize(
    ("settings", "figures"),
    [(1, ["curve"]), (2, ["curve", "settings"]), (MOST_SETTINGS + 1, ["curve"])],
)
def test_settings_stand_side_by_side_where_there_are_several_and_not_too_many(
    settings: int, figures: list[str], tmp_path: Path
) -> None:
    assert [name.split("_")[0] for name in names(tmp_path, settings)] == figures


def test_each_level_has_its_curve(tmp_path: Path) -> None:
    both = {"epsilon": {"sample": 1.0, "user": 2.0}, "delta": {"sample": 1e-5, "user": 1e-3}}
    found = names(tmp_path, 1, style="hybrid", **both)
    assert found == ["curve_digits_sample", "curve_digits_user"]


def test_a_sweep_without_results_has_no_figures(tmp_path: Path) -> None:
    assert sweep_figures(facts_of(tmp_path, [])) == []
