import numpy as np
import pytest

from dp_fedmed.config import ConfigError
from dp_fedmed.data import DataSet, Records

IMAGES = np.zeros((4, 1, 8, 8), np.uint8)
IDS = np.array([0, 1, 1, 0])


def test_subset_keeps_rows_together():
    records = Records(np.arange(8, dtype=np.float32).reshape(4, 2), IDS, np.array([5, 6, 7, 8]))
    part = records.subset(np.array([2, 0]))
    assert part.x[:, 0].tolist() == [4, 0]
    assert part.y.tolist() == [1, 0]
    assert part.groups is not None
    assert part.groups.tolist() == [7, 5]
    assert len(records.subset(np.array([], dtype=np.int64))) == 0


@pytest.mark.parametrize(
    ("x", "y", "groups", "says"),
    [
        (IMAGES[:3], IDS, None, "lengths"),
        (IMAGES, IDS, np.arange(3), "lengths"),
        (IMAGES.astype(np.float64), IDS, None, "float64"),
        (IMAGES[:, 0], IDS, None, "shape"),
        (IMAGES, IDS.astype(np.float32), None, "integer class ids"),
        (IMAGES, np.zeros((4, 7, 8), np.uint8), None, "do not fit"),
    ],
)
def test_records_that_disagree_are_refused(x, y, groups, says):
    with pytest.raises(ConfigError, match=says):
        Records(x, y, groups)


def test_a_data_set_checks_its_parts():
    good = Records(IMAGES, IDS)
    names = ("a", "b")
    assert DataSet(good, good, good, 2, names).input_shape == (1, 8, 8)
    with pytest.raises(ConfigError, match="class ids from 0 to 2"):
        DataSet(good, good, Records(IMAGES, IDS * 2), 2, names)
    with pytest.raises(ConfigError, match="val part of the data set is empty"):
        DataSet(good, good.subset(np.array([], np.int64)), good, 2, names)
    with pytest.raises(ConfigError, match="inputs of"):
        DataSet(good, good, Records(IMAGES[..., :4], IDS), 2, names)
    with pytest.raises(ConfigError, match="names"):
        DataSet(good, good, good, 3, names)
    nan = Records(np.full((4, 1, 8, 8), np.nan, np.float32), IDS)
    with pytest.raises(ConfigError, match="not finite"):
        DataSet(nan, good, good, 2, names)
