"""Segmented test images: what an expert drew, what the model found, and where the two differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dp_fedmed.reporting.drawing import GREEN, ORANGE, PURPLE, SERIES, as_rgb
from dp_fedmed.reporting.picture_sheet import as_picture, draw_sheet

AGREED, MISSED, EXTRA = GREEN, ORANGE, PURPLE


def segmentation_sheet(
    images: NDArray[Any],
    truth: NDArray[Any],
    predicted: NDArray[Any],
    titles: list[str],
    path: Path,
) -> None:
    """Draw images (n, C, H, W) with both masks (n, H, W) and their difference into a PNG."""
    rows = {
        "image": lambda axes, column: axes.imshow(as_picture(images[column])),
        "expert": lambda axes, column: axes.imshow(_in_colours(truth[column])),
        "model": lambda axes, column: axes.imshow(_in_colours(predicted[column])),
        "difference": lambda axes, column: axes.imshow(
            difference(truth[column], predicted[column])
        ),
    }
    draw_sheet(titles, rows, path)


def difference(truth: NDArray[Any], predicted: NDArray[Any]) -> NDArray[np.float64]:
    """Green where both see the same structure, orange where the model misses, purple where it adds.

    A structure that the model takes for another one is missed.
    """
    shown = np.zeros((*truth.shape, 3))
    shown[(truth == predicted) & (truth > 0)] = as_rgb(AGREED)
    shown[(truth != predicted) & (truth > 0)] = as_rgb(MISSED)
    shown[(truth == 0) & (predicted > 0)] = as_rgb(EXTRA)
    return shown


def _in_colours(mask: NDArray[Any]) -> NDArray[np.float64]:
    """Black background, white for a single structure, else a colour for each."""
    shown = np.zeros((*mask.shape, 3))
    classes = np.unique(mask[mask > 0])
    single = classes.max(initial=0) <= 1
    for number in classes:
        colour = (1.0, 1.0, 1.0) if single else as_rgb(SERIES[int(number) % len(SERIES)])
        shown[mask == number] = colour
    return shown
