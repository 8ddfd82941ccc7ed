import numpy as np
import pytest

from dp_fedmed.data import DataSet, Records
from dp_fedmed.errors import ConfigError

IMAGES = np.zeros((4, 1, 8, 8), np.uint8)
IDS = np.array([0, 1, 1, 0])


def test_subset_keeps_rows_together():
    records = Records(np.arange(8, dtype=np.float32).reshape(4, 2), IDS, np.array([5, 6, 7, 8]))
    part = records.subset(np.array([2, 0]))
    assert part.x[:, 0].tolist() == [4, 0]
    assert part.y.tolist() == [1, 0]
    assert part.site is not None
    assert part.site.tolist() == [7, 5]
    assert len(records.subset(np.array([], dtype=np.int64))) == 0


@pytest.mark.parametrize(
    ("x", "y", "site", "says"),
    [
        (IMAGES[:3], IDS, None, "lengths"),
        (IMAGES, IDS, np.arange(3), "lengths"),
        (IMAGES.astype(np.float64), IDS, None, "float64"),
        (IMAGES[:, 0], IDS, None, "shape"),
        (IMAGES, IDS.astype(np.float64), None, "integer class ids"),
        (IMAGES, np.zeros((4, 8, 8), np.float32), None, "float32 targets"),
        (IMAGES, np.zeros((4, 7, 8), np.uint8), None, "do not fit"),
    ],
)
def test_records_that_disagree_are_refused(x, y, site, says):
    with pytest.raises(ConfigError, match=says):
        Records(x, y, site)


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


@pytest.mark.parametrize(
    "ids", [np.array([0.5, 1, 2, 3]), np.zeros((4, 1), int), np.array([None] * 4)]
)
@pytest.mark.parametrize("field", ["site", "patient"])
def test_ids_are_numbers_or_text(field, ids):
    with pytest.raises(ConfigError, match=f"{field} of shape.*whole numbers or text"):
        Records(IMAGES, IDS, **{field: ids})
    assert len(Records(IMAGES, IDS, **{field: np.array(["a", "b", "b", "c"])})) == 4


def test_a_patient_in_two_parts_is_refused():
    one, two = (Records(IMAGES, IDS, patient=np.array(ids)) for ids in ([1, 1, 2, 3], [4, 5, 6, 3]))
    other = Records(IMAGES, IDS)
    DataSet(one, other, other, 2, ("a", "b"))
    with pytest.raises(
        ConfigError, match=r"1 patients .* train part and in the test part.*patient="
    ):
        DataSet(one, other, two, 2, ("a", "b"))


def test_labels_of_images_are_among_the_classes():
    masks = np.zeros((4, 8, 8), np.uint8)
    good, bad = (
        Records(IMAGES, masks, labels=np.array(ids)) for ids in ([0, 1, 1, 0], [0, 1, 2, 0])
    )
    with pytest.raises(ConfigError, match="test part has labels of whole images from 0 to 2"):
        DataSet(good, good, bad, 2, ("a", "b"))


def test_sites_with_names_are_numbered():
    part = Records(IMAGES, IDS, site=np.array([0, 1, 1, 0]))
    DataSet(part, part, part, 2, ("a", "b"), site_names=("bolt", "nut"))
    with pytest.raises(ConfigError, match="sites without a name"):
        DataSet(part, part, part, 2, ("a", "b"), site_names=("bolt",))
