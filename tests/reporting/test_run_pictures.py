"""What people look at: who holds what, test images, curves and the card."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from PIL import Image

from dp_fedmed.config import compose
from dp_fedmed.data import load_data, training_parts
from dp_fedmed.learning import Pictures
from dp_fedmed.reporting.run_pictures import RunPictures
from dp_fedmed.run.directory import (
    CARD_FILE,
    METRICS_PICTURE,
    PARTITION_FILE,
    PARTITION_PICTURE,
    RunDirectory,
)


def test_who_trains_on_what_is_a_table_and_a_picture(tmp_path: Path) -> None:
    config = compose(["privacy=none", "federation.num_clients=3"])
    data = load_data(config.data, seed=config.seed)
    RunPictures().describe_clients(config, data, RunDirectory(tmp_path))
    held = json.loads((tmp_path / PARTITION_FILE).read_text())
    assert held["schema"] == 1
    assert len(held["clients"]) == len(training_parts(config, data)) == 3
    with Image.open(tmp_path / PARTITION_PICTURE) as image:
        assert image.width > 100


@pytest.mark.parametrize("kind", ["segmentation", "anomaly"])
def test_a_sheet_shows_the_images_of_its_kind(
    kind: Literal["segmentation", "anomaly"], tmp_path: Path
) -> None:
    masks = np.zeros((2, 16, 16), np.int64)
    masks[:, 4:8, 4:8] = 1
    pictures = Pictures(
        kind=kind,
        images=np.full((2, 1, 16, 16), 0.5, np.float32),
        truth=masks,
        found=masks if kind == "segmentation" else masks.astype(np.float32),
        titles=("first", "second"),
    )
    RunPictures().pictures(pictures, tmp_path / "pictures.png")
    with Image.open(tmp_path / "pictures.png") as image:
        assert len(set(image.convert("RGB").getdata())) > 2, "it is not blank"


def test_a_finished_run_has_its_card_and_its_curves(a_run: Callable[[str], Path]) -> None:
    path = a_run("none")
    for name in (CARD_FILE, METRICS_PICTURE):
        (path / name).unlink()
    config = compose(["privacy=none", f"run_dir={path}"])
    RunPictures().finish(config, RunDirectory(path), None)
    assert "privacy" in (path / CARD_FILE).read_text().lower()
    with Image.open(path / METRICS_PICTURE) as image:
        assert image.width > 100
