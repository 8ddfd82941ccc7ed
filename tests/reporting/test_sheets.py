"""Test images with what was found in them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dp_fedmed.learning.anomaly.learner import one_of_each
from dp_fedmed.reporting.sheets import anomaly_sheet, difference, segmentation_sheet


def test_a_difference_shows_what_was_missed_and_what_was_added() -> None:
    truth, predicted = np.array([[0, 1, 1, 2, 0]]), np.array([[0, 1, 0, 1, 1]])
    shown = [tuple(pixel) for pixel in difference(truth, predicted)[0]]
    nothing, agreed, missed, mistaken, added = shown
    assert nothing == (0, 0, 0)
    assert missed == mistaken
    assert len({agreed, missed, added}) == 3


@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.parametrize("kind", ["uint8", "float32"])
def test_any_image_can_be_on_a_sheet(tmp_path: Path, channels: int, kind: str) -> None:
    images = np.arange(2 * channels * 64).reshape(2, channels, 8, 8).astype(kind)
    masks = np.zeros((2, 8, 8), np.int64)
    masks[:, :3, :3] = [[[1]], [[2]]]
    segmentation_sheet(images, masks, masks, ["a", "b"], tmp_path / "sheet.png")
    assert (tmp_path / "sheet.png").stat().st_size > 1000


@pytest.mark.parametrize("channels", [1, 3])
def test_a_sheet_has_a_column_an_image(tmp_path, channels):
    images = np.full((4, channels, 16, 16), 90, np.uint8)
    maps, masks = np.zeros((4, 16, 16)), np.zeros((4, 16, 16))
    maps[2, 4:8, 4:8] = 1.0
    anomaly_sheet(images, masks, maps, ["a", "b", "c", "d"], tmp_path / "sheet.png")
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.size == (720, 576)


def test_every_kind_of_every_category_is_shown_while_there_is_room():
    labels, groups = np.repeat(np.arange(4), 6), np.tile(np.arange(3), 8)
    assert len(one_of_each(labels, groups, most=20)) == 12
    some = one_of_each(labels, groups, most=5)
    assert len(set(some.tolist())) == 5
    assert set(labels[some].tolist()) == {0, 1, 2, 3}
