"""A sheet of pictures: images, where a model finds them strange, and where they are damaged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def picture_sheet(
    images: NDArray[np.uint8],
    maps: NDArray[Any],
    masks: NDArray[Any],
    titles: Sequence[str],
    path: Path,
) -> None:
    """One column an image: the image, its heat map over it, and its mask.

    All heat maps share one scale, so that a normal image stays cool. Images of a test set are
    records too: the sheet belongs where they may be seen.

    Args:
        images: (n, 1 or 3, H, W).
        maps: (n, H, W) pixel scores.
        masks: (n, H, W), above 0 where there is a defect.
        titles: a line above each column.
        path: where the PNG goes.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    count = len(images)
    figure = Figure(figsize=(1.5 * max(count, 2), 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(3, count, squeeze=False)
    low, high = (float(np.quantile(maps, q)) for q in (0.02, 0.998))
    for column, (image, heat, mask) in enumerate(zip(images, maps, masks, strict=True)):
        shown = (
            image.transpose(1, 2, 0) if len(image) == 3 else np.repeat(image[0, ..., None], 3, 2)
        )
        panels[0, column].imshow(shown)
        panels[1, column].imshow(shown)
        panels[1, column].imshow(heat, cmap="inferno", alpha=0.6, vmin=low, vmax=max(high, low))
        panels[2, column].imshow(mask > 0, cmap="gray", vmin=0, vmax=1)
        panels[0, column].set_title(titles[column], fontsize=8)
    for name, row in zip(("image", "score", "mask"), panels, strict=True):
        row[0].set_ylabel(name, fontsize=8)
        for panel in row:
            panel.set_xticks([])
            panel.set_yticks([])
    figure.savefig(path, dpi=120)


def chosen_for_sheet(
    labels: NDArray[Any], groups: NDArray[Any], most: int = 9
) -> NDArray[np.int64]:
    """Positions of a few images, one of each kind and group as far as they fit, normal ones first.

    >>> chosen_for_sheet(np.array([0, 1, 1, 0]), np.array([0, 0, 0, 0])).tolist()
    [0, 1]
    """
    pairs = np.stack([labels, groups], axis=1)
    _, first = np.unique(pairs, axis=0, return_index=True)
    if len(first) > most:
        first = first[np.linspace(0, len(first) - 1, most).round().astype(int)]
    return np.asarray(first, dtype=np.int64)
