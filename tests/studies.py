"""A study of thirty patients at three hospitals, one to six records each, with its own loader."""

from __future__ import annotations

import numpy as np

from dp_fedmed.config import DataConfig
from dp_fedmed.data import DataSet, Records, split_records

STUDY = ("data.name=tests.studies.load", "allow_code=[tests]")


def study(patients: int = 30) -> Records:
    """Patient p has 1 + p mod 6 records, all at hospital p mod 3; records come in no order."""
    patient = np.repeat(np.arange(patients) + 100, 1 + np.arange(patients) % 6)
    patient = np.random.default_rng(0).permutation(patient)
    x = np.random.default_rng(1).normal(size=(len(patient), 4)).astype(np.float32)
    return Records(x, (patient % 2).astype(np.int64), patient % 3, patient)


def whole(records: Records) -> DataSet:
    """All of it for training; somebody else's records to judge by."""
    other = Records(np.zeros((2, 4), np.float32), np.array([0, 1]))
    return DataSet(records, other, other, num_classes=2, class_names=("no", "yes"))


def load(config: DataConfig, seed: int) -> DataSet:
    train, val, test = split_records(
        study(), val_fraction=config.val_fraction, test_fraction=config.test_fraction, seed=seed
    )
    return DataSet(train, val, test, num_classes=2, class_names=("no", "yes"))


def load_images(config: DataConfig, seed: int) -> DataSet:
    """Small pictures without patients."""
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 255, (60, 1, 8, 8), dtype=np.uint8)
    train, val, test = split_records(
        Records(images, np.arange(60) % 2),
        val_fraction=config.val_fraction,
        test_fraction=config.test_fraction,
        seed=seed,
    )
    return DataSet(train, val, test, num_classes=2, class_names=("no", "yes"))
