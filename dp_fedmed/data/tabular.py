"""The two data sets that scikit-learn ships: breast-cancer biopsies and handwritten digits.

Its files are read as they are: importing scikit-learn takes longer than everything else in a plan.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from dp_fedmed.config import DataConfig
from dp_fedmed.data.records import Array, DataSet, Records
from dp_fedmed.data.splits import split_records

# (min, max) of each feature as published in scikit-learn's description of the set ("Summary
# Statistics", https://scikit-learn.org/stable/datasets/toy_dataset.html#breast-cancer-dataset).
# Public constants: statistics of a run's own training records would be a release of private data.
BREAST_CANCER_RANGES: tuple[tuple[float, float], ...] = (
    (6.981, 28.11),  # radius (mean)
    (9.71, 39.28),  # texture (mean)
    (43.79, 188.5),  # perimeter (mean)
    (143.5, 2501.0),  # area (mean)
    (0.053, 0.163),  # smoothness (mean)
    (0.019, 0.345),  # compactness (mean)
    (0.0, 0.427),  # concavity (mean)
    (0.0, 0.201),  # concave points (mean)
    (0.106, 0.304),  # symmetry (mean)
    (0.05, 0.097),  # fractal dimension (mean)
    (0.112, 2.873),  # radius (standard error)
    (0.36, 4.885),  # texture (standard error)
    (0.757, 21.98),  # perimeter (standard error)
    (6.802, 542.2),  # area (standard error)
    (0.002, 0.031),  # smoothness (standard error)
    (0.002, 0.135),  # compactness (standard error)
    (0.0, 0.396),  # concavity (standard error)
    (0.0, 0.053),  # concave points (standard error)
    (0.008, 0.079),  # symmetry (standard error)
    (0.001, 0.03),  # fractal dimension (standard error)
    (7.93, 36.04),  # radius (worst)
    (12.02, 49.54),  # texture (worst)
    (50.41, 251.2),  # perimeter (worst)
    (185.2, 4254.0),  # area (worst)
    (0.071, 0.223),  # smoothness (worst)
    (0.027, 1.058),  # compactness (worst)
    (0.0, 1.252),  # concavity (worst)
    (0.0, 0.291),  # concave points (worst)
    (0.156, 0.664),  # symmetry (worst)
    (0.055, 0.208),  # fractal dimension (worst)
)


def load_breast_cancer(config: DataConfig, seed: int) -> DataSet:
    """Wisconsin breast cancer: 569 biopsies, 30 features mapped to [-1, 1] by published ranges.

    >>> dataset = load_breast_cancer(DataConfig(), seed=0)
    >>> float(abs(dataset.train.x).max()) <= 1.0
    True
    """
    table = _shipped("breast_cancer.csv", header_rows=1)
    low, high = np.array(BREAST_CANCER_RANGES).T
    scaled = np.clip(2.0 * (table[:, :-1] - low) / (high - low) - 1.0, -1.0, 1.0)
    records = Records(scaled.astype(np.float32), table[:, -1].astype(np.int64))
    return _split(records, config, seed, class_names=("malignant", "benign"))


def load_digits(config: DataConfig, seed: int) -> DataSet:
    """Handwritten digits: 1797 grey images of 8×8 pixels, the set's 0..16 scaled to 0..255.

    >>> load_digits(DataConfig(), seed=0).input_shape
    (1, 8, 8)
    """
    table = _shipped("digits.csv.gz")
    pixels = np.rint(table[:, :-1] * (255.0 / 16.0)).astype(np.uint8).reshape(-1, 1, 8, 8)
    records = Records(pixels, table[:, -1].astype(np.int64))
    return _split(records, config, seed, class_names=tuple("0123456789"))


def _shipped(name: str, *, header_rows: int = 0) -> Array:
    """One of scikit-learn's tables: features, and the class in the last column."""
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise FileNotFoundError("scikit-learn is not installed: pip install scikit-learn")
    file = Path(package.origin).parent / "datasets" / "data" / name
    return np.loadtxt(file, delimiter=",", skiprows=header_rows)


def _split(
    records: Records, config: DataConfig, seed: int, *, class_names: tuple[str, ...]
) -> DataSet:
    train, val, test = split_records(
        records, val_fraction=config.val_fraction, test_fraction=config.test_fraction, seed=seed
    )
    return DataSet(train, val, test, num_classes=len(class_names), class_names=class_names)
