"""A sheet of pictures: one column per image, one row per way to look at it.

Images of a test set are records too: a sheet belongs where they may be seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dp_fedmed.reporting.drawing import new_figure, save_png

PICTURES_FILE = "pictures.png"


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
