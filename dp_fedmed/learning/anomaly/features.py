"""Patch features of a frozen backbone, and a cache that keeps them between rounds."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from dp_fedmed.models.backbones import Backbone

Floats = NDArray[np.float32]
#: Bytes of features that a process keeps.
MOST_BYTES = 512 * 2**20


class PatchFeatures:
    """Images to patch features of shape (n, grid·grid, channels), in row-major order.

    Each layer's map is averaged over 3×3 neighbourhoods, resized to the largest grid among the
    layers (unless `grid` is given) and joined along the channels (Roth et al. 2022). Every image is
    treated by itself.

    >>> from dp_fedmed.models.backbones import make_backbone
    >>> PatchFeatures(make_backbone("tiny"))(np.zeros((2, 3, 32, 32), np.uint8)).shape
    (2, 256, 24)
    """

    def __init__(
        self, backbone: Backbone, *, grid: int | None = None, batch_size: int = 16
    ) -> None:
        self.backbone, self.grid, self.batch_size = backbone, grid, batch_size

    def __call__(self, images: NDArray[np.uint8]) -> Floats:
        """Features of all images at once."""
        return np.concatenate(list(self.batches(images)))

    def batches(self, images: NDArray[np.uint8]) -> Iterator[Floats]:
        """The same, batch by batch."""
        for start in range(0, len(images), self.batch_size):
            part = torch.from_numpy(np.ascontiguousarray(images[start : start + self.batch_size]))
            maps = [neighbourhood_mean(layer) for layer in self.backbone(part)]
            rows = align(maps, grid=self.grid).flatten(2).transpose(1, 2)
            yield np.asarray(rows.contiguous().numpy(), dtype=np.float32)


class FeatureCache:
    """The batches of one `PatchFeatures`, by the images that they are of.

    The least recently used are dropped first, and what alone exceeds the bound is not kept. Batches
    come back as they were computed, to the last bit.

    >>> from dp_fedmed.models.backbones import make_backbone
    >>> cache = FeatureCache(PatchFeatures(make_backbone("tiny")))
    >>> images = np.zeros((2, 3, 32, 32), np.uint8)
    >>> first, again = list(cache.batches(images)), list(cache.batches(images))
    >>> first[0] is again[0]
    True
    """

    def __init__(self, extract: PatchFeatures, *, most_bytes: int = MOST_BYTES) -> None:
        self.extract, self.most_bytes = extract, most_bytes
        self._kept: OrderedDict[bytes, list[Floats]] = OrderedDict()
        self.size = 0

    def batches(self, images: NDArray[np.uint8], *, last: bool = False) -> Iterator[Floats]:
        """Features of images, batch by batch; not kept if this is the `last` time they are used."""
        key = _digest(images)
        kept = self._kept.pop(key, None)
        if kept is not None:
            self.size -= _bytes(kept)
            if not last:
                self._keep(key, kept)
            yield from kept
            return
        made: list[Floats] | None = None if last else []
        for batch in self.extract.batches(images):
            batch.flags.writeable = False
            if made is not None:
                made.append(batch)
                if _bytes(made) > self.most_bytes:
                    made = None
            yield batch
        if made is not None:
            self._keep(key, made)

    def _keep(self, key: bytes, batches: list[Floats]) -> None:
        self._kept[key] = batches
        self.size += _bytes(batches)
        while self.size > self.most_bytes:
            _, dropped = self._kept.popitem(last=False)
            self.size -= _bytes(dropped)


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
    size = (height, width)
    resized = []
    for m in maps:
        if m.shape[2] > height:
            m = F.adaptive_avg_pool2d(m, size)
        elif tuple(m.shape[2:]) != size:
            m = F.interpolate(m, size=size, mode="bilinear", align_corners=False)
        resized.append(m)
    return torch.cat(resized, dim=1)


def _bytes(batches: list[Floats]) -> int:
    return sum(batch.nbytes for batch in batches)


def _digest(images: NDArray[np.uint8]) -> bytes:
    found = hashlib.blake2b(repr((images.shape, images.dtype)).encode(), digest_size=32)
    found.update(np.ascontiguousarray(images).data)
    return found.digest()
