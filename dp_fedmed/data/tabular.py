"""What scikit-learn ships: breast-cancer biopsies, handwritten digits and diabetes patients.

Its files are read as they are: importing scikit-learn takes longer than everything else in a plan.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from dp_fedmed.config import DataConfig
from dp_fedmed.data.records import Array, DataSet, Records
from dp_fedmed.data.splits import split_records
from dp_fedmed.data.targets import Target

# (min, max) of each feature as published in scikit-learn's description of the set ("Summary
# Statistics", https://scikit-learn.org/stable/datasets/toy_dataset.html#breast-cancer-dataset).
# Public constants: statistics of a run's own training records would be a release of private data.
_BREAST_CANCER = (  # of the mean, of the standard error and of the worst value
    ((6.981, 28.11), (0.112, 2.873), (7.93, 36.04)),  # radius
    ((9.71, 39.28), (0.36, 4.885), (12.02, 49.54)),  # texture
    ((43.79, 188.5), (0.757, 21.98), (50.41, 251.2)),  # perimeter
    ((143.5, 2501.0), (6.802, 542.2), (185.2, 4254.0)),  # area
    ((0.053, 0.163), (0.002, 0.031), (0.071, 0.223)),  # smoothness
    ((0.019, 0.345), (0.002, 0.135), (0.027, 1.058)),  # compactness
    ((0.0, 0.427), (0.0, 0.396), (0.0, 1.252)),  # concavity
    ((0.0, 0.201), (0.0, 0.053), (0.0, 0.291)),  # concave points
    ((0.106, 0.304), (0.008, 0.079), (0.156, 0.664)),  # symmetry
    ((0.05, 0.097), (0.001, 0.03), (0.055, 0.208)),  # fractal dimension
)
BREAST_CANCER_RANGES = tuple(row[column] for column in range(3) for row in _BREAST_CANCER)

# Adults' clinical reference ranges, chosen without a look at the table. scikit-learn's own scaling
# divides by statistics of all 442 patients.
DIABETES_RANGES: tuple[tuple[float, float], ...] = (
    (20.0, 80.0),  # age, years
    (1.0, 2.0),  # sex
    (18.0, 42.0),  # body mass index, kg/m²
    (60.0, 130.0),  # average blood pressure, mmHg
    (100.0, 300.0),  # total cholesterol, mg/dl
    (40.0, 240.0),  # LDL, mg/dl
    (20.0, 100.0),  # HDL, mg/dl
    (2.0, 9.0),  # total cholesterol / HDL
    (3.2, 6.2),  # log of triglycerides, 25 to 500 mg/dl
    (60.0, 130.0),  # glucose, mg/dl
)
# "Targets: integer 25 - 346" (https://scikit-learn.org/stable/datasets/toy_dataset.html).
PROGRESSION = Target(low=25.0, high=346.0, name="progression", unit="points")


def load_breast_cancer(config: DataConfig, seed: int) -> DataSet:
    """Wisconsin breast cancer: 569 biopsies, 30 features mapped to [-1, 1] by published ranges.

    >>> dataset = load_breast_cancer(DataConfig(), seed=0)
    >>> float(abs(dataset.train.x).max()) <= 1.0
    True
    """
    table = _shipped("breast_cancer.csv", header_rows=1)
    low, high = np.array(BREAST_CANCER_RANGES).T
    records = Records(_scaled(table[:, :-1], low, high), table[:, -1].astype(np.int64))
    return _split(records, config, seed, num_classes=2, class_names=("malignant", "benign"))


def load_digits(config: DataConfig, seed: int) -> DataSet:
    """Handwritten digits: 1797 grey images of 8×8 pixels, the set's 0..16 scaled to 0..255.

    >>> load_digits(DataConfig(), seed=0).input_shape
    (1, 8, 8)
    """
    table = _shipped("digits.csv.gz")
    pixels = np.rint(table[:, :-1] * (255.0 / 16.0)).astype(np.uint8).reshape(-1, 1, 8, 8)
    records = Records(pixels, table[:, -1].astype(np.int64))
    return _split(records, config, seed, num_classes=10, class_names=tuple("0123456789"))


def load_diabetes(config: DataConfig, seed: int) -> DataSet:
    """Disease progression of 442 diabetes patients a year later, from ten baseline measurements.

    >>> dataset = load_diabetes(DataConfig(), seed=0)
    >>> dataset.input_shape, dataset.targets[0].name
    ((10,), 'progression')
    """
    low, high = np.array(DIABETES_RANGES).T
    table = _shipped("diabetes_data_raw.csv.gz", delimiter=None)
    values = _shipped("diabetes_target.csv.gz")
    records = Records(_scaled(table, low, high), PROGRESSION.scaled(values))
    return _split(records, config, seed, targets=(PROGRESSION,))


def _shipped(name: str, *, header_rows: int = 0, delimiter: str | None = ",") -> Array:
    """One of scikit-learn's tables."""
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise FileNotFoundError("scikit-learn is not installed: pip install scikit-learn")
    file = Path(package.origin).parent / "datasets" / "data" / name
    return np.loadtxt(file, delimiter=delimiter, skiprows=header_rows)


def _scaled(table: Array, low: Array, high: Array) -> Array:
    """Features mapped from their public ranges to [-1, 1]."""
    scaled = np.clip(2.0 * (table - low) / (high - low) - 1.0, -1.0, 1.0)
    return np.asarray(scaled, dtype=np.float32)


def _split(records: Records, config: DataConfig, seed: int, **described: Any) -> DataSet:
    parts = split_records(
        records, val_fraction=config.val_fraction, test_fraction=config.test_fraction, seed=seed
    )
    return DataSet(*parts, **described)
