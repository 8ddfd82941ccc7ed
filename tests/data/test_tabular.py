import subprocess
import sys

import numpy as np
import pytest

from dp_fedmed.config import DataConfig
from dp_fedmed.data import load_data
from dp_fedmed.data.tabular import BREAST_CANCER_RANGES


def test_the_scaling_constants_are_those_of_the_published_description():
    from sklearn.datasets import load_breast_cancer

    description = load_breast_cancer().DESCR
    table = [line.split(":")[1].split() for line in description.splitlines() if "):" in line]
    published = [(float(row[0]), float(row[1])) for row in table if len(row) == 2]
    assert published == list(BREAST_CANCER_RANGES)


def test_breast_cancer_is_scaled_by_public_constants_alone():
    from sklearn.datasets import load_breast_cancer

    one, two = (
        load_data(DataConfig(val_fraction=fraction, test_fraction=0.1), seed=seed)
        for fraction, seed in ((0.1, 0), (0.4, 3))
    )

    def rows(dataset):
        return {row.tobytes() for part in dataset.parts().values() for row in part.x}

    low, high = np.array(BREAST_CANCER_RANGES).T
    expected = np.clip(2 * (load_breast_cancer().data - low) / (high - low) - 1, -1, 1)
    assert rows(one) == {row.tobytes() for row in expected.astype(np.float32)}
    assert rows(one) == rows(two), "a record's features may not depend on who else is in the split"
    assert max(np.abs(part.x).max() for part in one.parts().values()) <= 1.0
    assert one.train.x.dtype == np.float32


@pytest.mark.parametrize(
    ("name", "total", "classes"), [("breast_cancer", 569, 2), ("digits", 1797, 10)]
)
def test_parts_are_disjoint_complete_and_stratified(name, total, classes):
    dataset = load_data(DataConfig(name=name), seed=0)
    sizes = [len(part) for part in dataset.parts().values()]
    assert sum(sizes) == total
    assert sizes[1:] == [round(total * 0.15), round(total * 0.2)]
    shares = [
        np.bincount(part.y, minlength=classes) / len(part) for part in dataset.parts().values()
    ]
    assert np.abs(shares[0] - shares[1]).max() < 0.02
    assert np.abs(shares[0] - shares[2]).max() < 0.02


def test_digits_use_the_whole_range_of_bytes():
    dataset = load_data(DataConfig(name="digits"), seed=0)
    assert dataset.train.x.dtype == np.uint8
    assert dataset.input_shape == (1, 8, 8)
    assert dataset.train.x.max() == 255


def test_the_files_hold_what_scikit_learn_loads_and_it_is_not_imported_for_them():
    from sklearn.datasets import load_breast_cancer, load_digits

    from dp_fedmed.data.tabular import _shipped

    for bunch, table in (
        (load_breast_cancer(), _shipped("breast_cancer.csv", header_rows=1)),
        (load_digits(), _shipped("digits.csv.gz")),
    ):
        assert np.array_equal(bunch.data, table[:, :-1])
        assert np.array_equal(bunch.target, table[:, -1])
    probe = (
        "import sys; from dp_fedmed.config import DataConfig; from dp_fedmed.data import load_data;"
        "[load_data(DataConfig(name=n), seed=0) for n in ('digits', 'breast_cancer')];"
        "assert not {'sklearn', 'torch', 'pandas'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", probe], check=True)
