"""Pictures of what was rebuilt."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dp_fedmed.evidence.reconstruction_plots import plot_reconstruction


def test_colour_images_are_drawn(tmp_path: Path) -> None:
    images = np.random.default_rng(0).random((2, 3, 8, 8))
    plot_reconstruction([("a", "b", images), ("c", "d", images)], "title", tmp_path / "x.png")
    assert (tmp_path / "x.png").exists()
