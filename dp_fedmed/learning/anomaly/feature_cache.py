"""Features of a client's images, kept between rounds: the backbone is frozen, the images stay."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from dp_fedmed.learning.anomaly.features import Floats, PatchFeatures

#: Bytes of features that a process keeps.
MOST_BYTES = 512 * 2**20


class FeatureCache:
    """The batches of one `PatchFeatures`, by the images that they are of.

    What was asked for longest ago is dropped first, and what alone exceeds the bound is not kept.
    Batches come back as they were computed, to the last bit.

    Args:
        extract: makes features of one backbone, its layers and its grid.
        most_bytes: the bound.

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
        """Features of images, batch by batch.

        Args:
            images: (n, channels, height, width).
            last: nobody will ask for them again, so they need not be kept.
        """
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


def _bytes(batches: list[Floats]) -> int:
    return sum(batch.nbytes for batch in batches)


def _digest(images: NDArray[np.uint8]) -> bytes:
    found = hashlib.blake2b(repr((images.shape, images.dtype)).encode(), digest_size=32)
    found.update(np.ascontiguousarray(images).data)
    return found.digest()
