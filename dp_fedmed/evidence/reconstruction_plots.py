"""A sheet of training images and what a server could make of them, one row per style."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dp_fedmed.reporting.drawing import BRIGHTNESS, GRID, MUTED, new_figure, save_png


def plot_reconstruction(
    rows: Sequence[tuple[str, str, NDArray[Any]]], title: str, path: Path
) -> None:
    """Draw rows of images with a name and a figure beside each.

    Args:
        rows: (name, figure, images of shape (n, 1 or 3, H, W) in [0, 1]), the originals first.
        title: a line above the picture.
        path: where the PNG goes.
    """
    count = len(rows[0][2])
    width, left = 0.78, 2.3
    figure = new_figure(left + width * count, width * len(rows) + 0.5, layout=None)
    whole_width, whole_height = figure.get_size_inches()
    panels = figure.subplots(
        len(rows),
        count,
        squeeze=False,
        gridspec_kw={
            "left": left / whole_width,
            "right": 0.99,
            "bottom": 0.02,
            "top": 1.0 - 0.42 / whole_height,
            "wspace": 0.08,
            "hspace": 0.12,
        },
    )
    for (name, figure_of_row, images), row in zip(rows, panels, strict=True):
        for image, panel in zip(images, row, strict=True):
            _draw(panel, image)
        row[0].text(
            -0.15, 0.62, name, transform=row[0].transAxes, ha="right", va="center", fontsize=9
        )
        row[0].text(
            -0.15, 0.3, figure_of_row, transform=row[0].transAxes, ha="right", va="center",
            fontsize=7, color=MUTED,
        )  # fmt: skip
    figure.suptitle(title, fontsize=10, y=1.0 - 0.12 / whole_height, va="top")
    save_png(figure, path, dpi=110)


def _draw(panel: Any, image: NDArray[Any]) -> None:
    panel.set(xticks=[], yticks=[])
    for spine in panel.spines.values():
        spine.set(color=GRID, linewidth=0.5)
    if len(image) == 3:
        panel.imshow(np.clip(image.transpose(1, 2, 0), 0.0, 1.0))
    else:
        panel.imshow(image[0], cmap=BRIGHTNESS, vmin=0.0, vmax=1.0)
