"""Patch features: what every part of an image looks like, in the eyes of a frozen backbone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from dp_fedmed.models.backbones import Backbone

Floats = NDArray[np.float32]


class PatchFeatures:
    """Images to patch features of shape (n, grid·grid, dimension), in row-major order.

    Each layer's map is averaged over 3×3 neighbourhoods, resized to the largest grid among the
    layers and joined along the channels (Roth et al. 2022); with `dimension`, adjacent channels are
    pooled to that many. Every image is treated by itself.

    Args:
        backbone: a frozen backbone.
        dimension: number of values per patch; all channels unless given.
        grid: side of the grid; the largest among the layers unless given.
        batch_size: images at a time.

    >>> from dp_fedmed.models.backbones import make_backbone
    >>> extract = PatchFeatures(make_backbone("tiny"), dimension=10)
    >>> extract(np.zeros((2, 3, 32, 32), np.uint8)).shape
    (2, 256, 10)
    """

    def __init__(
        self,
        backbone: Backbone,
        *,
        dimension: int | None = None,
        grid: int | None = None,
        batch_size: int = 16,
    ) -> None:
        self.backbone = backbone
        self.dimension = dimension
        self.grid = grid
        self.batch_size = batch_size

    def __call__(self, images: NDArray[np.uint8]) -> Floats:
        """Features of all images at once."""
        return np.concatenate(list(self.batches(images)))

    def batches(self, images: NDArray[np.uint8]) -> Iterator[Floats]:
        """The same, batch by batch."""
        for start in range(0, len(images), self.batch_size):
            part = torch.from_numpy(np.ascontiguousarray(images[start : start + self.batch_size]))
            yield self._features(self.backbone(part))

    def _features(self, maps: Sequence[Tensor]) -> Floats:
        joined = align([neighbourhood_mean(m) for m in maps], grid=self.grid)
        rows = joined.flatten(2).transpose(1, 2)
        if self.dimension is not None and self.dimension != rows.shape[2]:
            rows = F.adaptive_avg_pool1d(rows, self.dimension)
        return np.asarray(rows.contiguous().numpy(), dtype=np.float32)


def neighbourhood_mean(maps: Tensor, size: int = 3) -> Tensor:
    """Mean over each size×size neighbourhood; at the border over what is there.

    >>> neighbourhood_mean(torch.ones(1, 1, 4, 4)).unique()
    tensor([1.])
    """
    return F.avg_pool2d(maps, size, stride=1, padding=size // 2, count_include_pad=False)


def align(maps: Sequence[Tensor], *, grid: int | None = None) -> Tensor:
    """Maps of several layers on one grid, joined along the channels.

    Maps are enlarged bilinearly; where `grid` is below a map's own, it is averaged.

    >>> align([torch.zeros(1, 2, 8, 8), torch.zeros(1, 3, 4, 4)]).shape
    torch.Size([1, 5, 8, 8])
    """
    if grid is None:
        height, width = max((tuple(m.shape[2:]) for m in maps), key=lambda size: size[0] * size[1])
    else:
        height = width = grid
    resized = []
    for m in maps:
        if m.shape[2] > height:
            m = F.adaptive_avg_pool2d(m, (height, width))
        elif tuple(m.shape[2:]) != (height, width):
            m = F.interpolate(m, size=(height, width), mode="bilinear", align_corners=False)
        resized.append(m)
    return torch.cat(resized, dim=1)
