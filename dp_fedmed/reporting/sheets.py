"""Sheets of test images: one column per image, one row per way to look at it.

Images of a test set are records too: a sheet belongs where they may be seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dp_fedmed.reporting.drawing import (
    BRIGHTNESS,
    GREEN,
    HEAT,
    ORANGE,
    PURPLE,
    SERIES,
    as_rgb,
    new_figure,
    save_png,
)

AGREED, MISSED, EXTRA = GREEN, ORANGE, PURPLE


def segmentation_sheet(
    images: NDArray[Any],
    truth: NDArray[Any],
    predicted: NDArray[Any],
    titles: Sequence[str],
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


def anomaly_sheet(
    images: NDArray[Any],
    masks: NDArray[Any],
    maps: NDArray[Any],
    titles: Sequence[str],
    path: Path,
) -> None:
    """Draw images (n, C, H, W) with their pixel scores and masks (n, H, W) into a PNG.

    All heat maps share one scale, so that a normal image stays cool.
    """
    low, high = (float(np.quantile(maps, q)) for q in (0.02, 0.998))

    def heat(axes: Any, column: int) -> None:
        axes.imshow(as_picture(images[column]))
        axes.imshow(maps[column], cmap=HEAT, alpha=0.6, vmin=low, vmax=max(high, low))

    rows = {
        "image": lambda axes, column: axes.imshow(as_picture(images[column])),
        "score": heat,
        "mask": lambda axes, column: axes.imshow(
            masks[column] > 0, cmap=BRIGHTNESS, vmin=0, vmax=1
        ),
    }
    draw_sheet(titles, rows, path)


def draw_sheet(
    titles: Sequence[str], rows: Mapping[str, Callable[[Any, int], None]], path: Path
) -> None:
    """Draw a sheet into a PNG file.

    Args:
        titles: a line above each column.
        rows: each row's name, and what draws the image of a column into axes.
        path: where the PNG goes.
    """
    count = len(titles)
    figure = new_figure(1.5 * max(count, 2), 1.6 * len(rows))
    panels = figure.subplots(len(rows), count, squeeze=False)
    for row, (name, draw) in zip(panels, rows.items(), strict=True):
        for column, panel in enumerate(row):
            draw(panel, column)
            panel.set(xticks=[], yticks=[])
        row[0].set_ylabel(name, fontsize=8)
    for panel, title in zip(panels[0], titles, strict=True):
        panel.set_title(title, fontsize=8)
    save_png(figure, path, dpi=120)


def as_picture(image: NDArray[Any]) -> NDArray[Any]:
    """(H, W, 3) to look at, of a record (C, H, W): three channels, or the first of them in grey.

    >>> as_picture(np.zeros((1, 4, 5), np.uint8)).shape
    (4, 5, 3)
    """
    shown = image.transpose(1, 2, 0) if len(image) == 3 else np.repeat(image[0, ..., None], 3, 2)
    if shown.dtype == np.uint8:
        return shown
    low, high = float(shown.min()), float(shown.max())
    return (shown - low) / max(high - low, 1e-12)
