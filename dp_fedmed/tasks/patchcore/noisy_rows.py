"""`noisy_rows`: a memory bank of single patches, each with noise. For comparison: it is weak.

Rows do not add up, so noise does not average: each row carries all of it. The sensitivity is that
of `EmbeddingSanitizer`: m rows per image, drawn without looking at them, each clipped to C, so that
replacing an image moves the matrix by at most 2C√m. A greedy choice of rows would let one image
change every row; here the choice depends on a secret stream and on public counts only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dp_fedmed.privacy import DPConfig, EmbeddingSanitizer, NoiseStream
from dp_fedmed.tasks.patchcore.bank import MemoryBank
from dp_fedmed.tasks.patchcore.maps import power_mean
from dp_fedmed.tasks.patchcore.public_map import PublicMap
from dp_fedmed.tasks.patchcore.statistics import Floats


class NoisyRows:
    """Draws, clips and noises the rows of one client.

    Args:
        public_map: from backbone features to patches of norm at most 1.
        epsilon: ε of the one release, per image, replace-one.
        delta: its δ.
        rows_per_image: m.

    Example:
        >>> from dp_fedmed.tasks.patchcore.public_map import random_map
        >>> rows = NoisyRows(random_map(8, 4), epsilon=8.0, delta=1e-5)
        >>> rows.release(np.ones((5, 9, 8), np.float32), noise=NoiseStream.fresh(),
        ...              selection=NoiseStream.fresh()).shape
        (5, 4)
    """

    def __init__(
        self, public_map: PublicMap, *, epsilon: float, delta: float, rows_per_image: int = 1
    ) -> None:
        self.public_map = public_map
        self.rows_per_image = rows_per_image
        self.sanitizer = EmbeddingSanitizer(
            DPConfig(
                enabled=True,
                epsilon=epsilon,
                delta=delta,
                clipping_norm=1.0,
                max_rows_per_image=rows_per_image,
            )
        )

    def select(self, features: NDArray[Any], *, selection: NoiseStream) -> tuple[Floats, Any]:
        """The chosen rows before noise, and the image that each belongs to."""
        patches = self.public_map(features)
        owners = np.repeat(np.arange(len(patches)), patches.shape[1])
        chosen = self.sanitizer.select_rows(owners, stream=selection)
        return patches.reshape(-1, patches.shape[2])[chosen], owners[chosen]

    def release(
        self, features: NDArray[Any], *, noise: NoiseStream, selection: NoiseStream
    ) -> Floats:
        """Noised rows (n·m, dimension) of the images (n, P, channels)."""
        rows, owners = self.select(features, selection=selection)
        noisy = self.sanitizer.sanitize(rows, image_ids=owners, stream=noise)
        return np.asarray(noisy, dtype=np.float32)

    def model(self, rows: NDArray[Any]) -> RowsModel:
        """Distances to the noised rows of all clients."""
        return RowsModel(self.public_map, rows)


class RowsModel:
    """Distance of each patch to the nearest noised row, averaged over an image."""

    def __init__(self, public_map: PublicMap, rows: NDArray[Any]) -> None:
        # Rows belong on the unit sphere: putting them back is post-processing.
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        self.public_map = public_map
        self.bank = MemoryBank(rows / np.maximum(norms, 1e-12))

    def patch_scores(self, features: NDArray[Any]) -> Floats:
        """(n, P, channels) to (n, P)."""
        patches = self.public_map(features)
        distance, _ = self.bank.nearest(patches.reshape(-1, patches.shape[2]))
        return distance.reshape(patches.shape[:2])

    def image_scores(self, patch_scores: NDArray[Any]) -> NDArray[np.float64]:
        """(n, P) to (n,)."""
        return power_mean(patch_scores, 2.0)
