"""`noisy_rows`: a memory bank of single patches, each with noise. For comparison: it is weak.

Rows do not add up, so noise does not average: each row carries all of it.

Sensitivity: at most m rows per image are drawn by a secret stream that looks at public counts only,
and each is clipped to norm C = 1 (`EmbeddingSanitizer`). Replacing one image therefore changes at
most m rows, each by at most 2C, and moves the matrix by at most 2C√m. A greedy choice of rows would
let one image change every row. The number of rows is public, so neighbours differ by a replaced
image, never by one more or less: noise of standard deviation σ·C√m is accounted as a Gaussian of
σ/2 (`PrivacyEvent` with adjacency `replace_one`). Repeating, dropping or scaling noised rows is
post-processing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dp_fedmed.learning.anomaly.bank import MemoryBank
from dp_fedmed.learning.anomaly.maps import power_mean
from dp_fedmed.learning.anomaly.public_map import PublicMap
from dp_fedmed.learning.anomaly.statistics import BOUND, Floats
from dp_fedmed.privacy import DPConfig, EmbeddingSanitizer, NoiseStream


class NoisyRows:
    """Draws, clips and noises the rows of one client.

    Args:
        public_map: from backbone features to patches of norm at most 1.
        rows_per_image: m.

    Example:
        >>> from dp_fedmed.learning.anomaly.public_map import random_map
        >>> rows = NoisyRows(random_map(8, 4))
        >>> exact = rows.select([np.ones((5, 9, 8), np.float32)], selection=NoiseStream.fresh())
        >>> rows.noised(exact, noise_multiplier=4.0, noise=NoiseStream.fresh()).shape
        (5, 4)
    """

    def __init__(self, public_map: PublicMap, *, rows_per_image: int = 1) -> None:
        self.public_map = public_map
        # It selects and clips; ε is the plan's to decide, so its own noise stays off.
        self.sanitizer = EmbeddingSanitizer(
            DPConfig(clipping_norm=BOUND, max_rows_per_image=rows_per_image)
        )

    def select(
        self,
        batches: Iterable[NDArray[Any]],
        *,
        selection: NoiseStream,
        most: int | None = None,
    ) -> Floats:
        """Rows before noise: m random patches of each image, each of norm at most 1.

        Args:
            batches: features (n, P, channels).
            selection: decides which patches; it must not depend on them.
            most: a random choice of so many is kept where there are more.
        """
        chosen = [np.empty((0, self.public_map.dimension), np.float32)]
        for features in batches:
            patches = self.public_map(features)
            owners = np.repeat(np.arange(len(patches)), patches.shape[1])
            kept = self.sanitizer.select_rows(owners, stream=selection)
            chosen.append(patches.reshape(-1, patches.shape[2])[kept])
        rows = np.concatenate(chosen)
        if most is not None and len(rows) > most:
            rows = rows[np.sort(selection.generator.permutation(len(rows))[:most])]
        clipped: Floats = self.sanitizer.clip_embeddings(rows)[0]
        return clipped

    def noise_std(self, noise_multiplier: float) -> float:
        """Standard deviation of the noise in each coordinate: σ·C√m."""
        return noise_multiplier * self.sanitizer.sensitivity / 2.0

    def noised(self, rows: Floats, *, noise_multiplier: float, noise: NoiseStream) -> Floats:
        """Selected rows as they may be released."""
        drawn = noise.normal(rows.shape, std=self.noise_std(noise_multiplier))
        return np.asarray(rows.astype(np.float64) + drawn, dtype=np.float32)


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
