"""A plan as a picture."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from dp_fedmed.cli import main


@pytest.mark.parametrize(
    "words",
    [
        ["privacy=hybrid", "recipe=none", "data.partition.name=size_skewed"],
        ["privacy=sample", "--records", ",".join(map(str, range(30, 70)))],
        ["privacy=none"],
    ],
)
def test_a_picture_is_drawn(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "made.png"
    assert main(["plan", "--fast", "--plot", str(picture), *words]) == 0
    assert str(picture) in capsys.readouterr().out.replace("\n", "")
    grey = Image.open(picture).convert("L")
    assert grey.width >= 700
    assert grey.getextrema()[0] < 80, "something is drawn"
