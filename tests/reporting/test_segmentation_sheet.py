"""Test images with what was found in them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dp_fedmed.reporting.segmentation_sheet import difference, segmentation_sheet


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
