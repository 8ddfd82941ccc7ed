"""The picture of a run: panels that have something to show, and no empty ones."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from dp_fedmed.reporting.figures import plot_metrics


def width(rows: list[dict[str, object]], path: Path) -> int:
    """Of the picture in panels; 0 if there is none."""
    plot_metrics(rows, "accuracy", "a run", path)
    return round(Image.open(path).width / 140 / 4.5) if path.exists() else 0


def test_a_panel_without_a_curve_is_left_out(tmp_path: Path) -> None:
    final = {"final": True, "selected_round": 2, "test": {"accuracy": 0.9}}
    scored = [{"round": n, "val": {"accuracy": 0.1 * n, "loss": 1.0}} for n in range(3)]
    spent = [{"round": n, "val": {}, "epsilon": {"sample": 1.0 * n}} for n in range(3)]
    both = [{**one, "epsilon": {"sample": 1.0, "user": 2.0}} for one in scored]
    assert width([*scored, final], tmp_path / "scored.png") == 2
    assert width([*both, final], tmp_path / "both.png") == 3
    assert width([*spent, final], tmp_path / "spent.png") == 1
    assert width([{"round": 0, "val": {}}, final], tmp_path / "nothing.png") == 0
