"""Test images of an anomaly task: where the model finds them strange, where they are damaged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dp_fedmed.reporting.drawing import BRIGHTNESS, HEAT
from dp_fedmed.reporting.picture_sheet import as_picture, draw_sheet


def anomaly_sheet(
    images: NDArray[np.uint8],
    masks: NDArray[Any],
    maps: NDArray[Any],
    titles: Sequence[str],
    path: Path,
) -> None:
    """One column per image: the image, its heat map over it, and its mask.

    All heat maps share one scale, so that a normal image stays cool. Images of a test set are
    records too: the sheet belongs where they may be seen.

    Args:
        images: (n, 1 or 3, H, W).
        masks: (n, H, W), above 0 where there is a defect.
        maps: (n, H, W) pixel scores.
        titles: a line above each column.
        path: where the PNG goes.
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
