import numpy as np
import pytest
from PIL import Image

from dp_fedmed.learning.anomaly.learner import one_of_each
from dp_fedmed.reporting.anomaly_sheet import anomaly_sheet


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
