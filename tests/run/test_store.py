"""What tells data apart, and what becomes of keys."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from dp_fedmed.data import DataSet, Records
from dp_fedmed.privacy.streams.keys import MacKey
from dp_fedmed.privacy.streams.noise import NoiseKey
from dp_fedmed.run.spent import read_plan
from dp_fedmed.run.store import data_digest, destroy_key


def test_data_are_told_apart_by_every_part_and_only_with_the_key() -> None:
    part = Records(np.arange(8, dtype=np.float32).reshape(4, 2), np.array([0, 1, 0, 1]))
    data = DataSet(part, part, part, num_classes=2, class_names=("no", "yes"))
    key = MacKey.generate()
    digest = data_digest(key, data)
    assert digest == data_digest(key, data)
    assert digest != data_digest(MacKey.generate(), data)
    for changed in (
        Records(part.x + 1, part.y),
        Records(part.x, 1 - part.y),
        Records(part.x, part.y, np.zeros(4, np.int64)),
    ):
        for name in ("train", "val", "test"):
            assert data_digest(key, replace(data, **{name: changed})) != digest


def test_a_key_is_destroyed_whatever_its_file_holds(tmp_path: Path) -> None:
    whole, damaged = tmp_path / "whole.key", tmp_path / "damaged.key"
    NoiseKey.create(whole)
    damaged.write_bytes(b"half a k")
    for file in (whole, damaged):
        destroy_key(file)
        assert not file.exists()


def test_a_phase_without_privacy_has_no_plan() -> None:
    assert read_plan({"plan": None}) is None
