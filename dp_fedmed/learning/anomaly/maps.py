"""From patch scores to one score per image and one per pixel."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

Floats = NDArray[np.float32]


def pixel_maps(patch_scores: Floats, *, image_size: int, blur: float | None = None) -> Floats:
    """Patch scores (n, grid·grid) as blurred maps (n, image_size, image_size).

    Args:
        patch_scores: one score per patch, row by row.
        image_size: side of the images.
        blur: standard deviation of the Gaussian in pixels; 4 at 256 pixels, in proportion at other
            sizes, unless given; 0 leaves it out.

    >>> pixel_maps(np.ones((2, 16), np.float32), image_size=8).round(5).min()
    np.float32(1.0)
    """
    grid = math.isqrt(patch_scores.shape[1])
    if grid * grid != patch_scores.shape[1]:
        raise ValueError(f"{patch_scores.shape[1]} patches are not a square grid")
    maps = torch.from_numpy(np.ascontiguousarray(patch_scores, dtype=np.float32))
    maps = F.interpolate(
        maps.reshape(-1, 1, grid, grid),
        size=(image_size, image_size),
        mode="bilinear",
        align_corners=False,
    )
    sigma = image_size / 64.0 if blur is None else blur
    return np.asarray(_blurred(maps, sigma)[:, 0].numpy())


def power_mean(patch_scores: NDArray[Any], power: float) -> NDArray[np.float64]:
    """(mean of sᵖ)^(1/p) over an image's patches: 1 is the mean, infinity the maximum.

    >>> power_mean(np.array([[3.0, 4.0]]), 1.0), power_mean(np.array([[3.0, 4.0]]), np.inf)
    (array([3.5]), array([4.]))
    """
    scores = np.asarray(patch_scores, dtype=np.float64)
    peak = scores.max(axis=1)
    if np.isinf(power):
        return np.asarray(peak)
    safe = np.maximum(peak, 1e-300)
    return np.asarray(safe * np.mean((scores / safe[:, None]) ** power, axis=1) ** (1.0 / power))


def _blurred(maps: torch.Tensor, sigma: float) -> torch.Tensor:
    reach = min(math.ceil(3.0 * sigma), maps.shape[-1] - 1)
    if reach == 0:
        return maps
    kernel = torch.exp(-0.5 * (torch.arange(-reach, reach + 1) / sigma) ** 2)
    kernel = (kernel / kernel.sum()).reshape(1, 1, 1, -1)
    for pad, shaped in (((reach, reach, 0, 0), kernel), ((0, 0, reach, reach), kernel.mT)):
        maps = F.conv2d(F.pad(maps, pad, mode="reflect"), shaped)
    return maps
