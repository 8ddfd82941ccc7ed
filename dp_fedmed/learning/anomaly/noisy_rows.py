"""A memory bank of single noised patches. For comparison: it is weak.

`dp_fedmed.privacy.mechanisms.noisy_rows` has the mechanism and its proof. A greedy choice of rows
would let one image change every row, so they are drawn without looking at them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dp_fedmed.learning.anomaly.bank import MemoryBank
from dp_fedmed.learning.anomaly.metrics import power_mean
from dp_fedmed.learning.anomaly.statistics import Floats, PublicMap
from dp_fedmed.privacy.mechanisms.noisy_rows import NoisyRows
from dp_fedmed.privacy.mechanisms.private_sum import Ints
from dp_fedmed.privacy.streams.noise import NoiseStream


def drawn_rows(
    mechanism: NoisyRows,
    public_map: PublicMap,
    batches: Iterable[NDArray[Any]],
    *,
    selection: NoiseStream,
    most: int | None = None,
) -> Ints:
    """Rows before noise: m random patches of each image, each of norm at most 1.

    `selection` decides which patches of the features (n, P, channels), and must not depend on them;
    where there are more than `most` rows, a random choice of that many is kept.

    >>> from dp_fedmed.learning.anomaly.statistics import random_map
    >>> features = [np.ones((5, 9, 8), np.float32)]
    >>> mechanism = NoisyRows(noise_multiplier=4.0)
    >>> drawn_rows(mechanism, random_map(8, 4), features, selection=NoiseStream.fresh()).shape
    (5, 4)
    """
    chosen = [np.empty((0, public_map.dimension), np.float32)]
    for features in batches:
        patches = public_map(features)
        owners = np.repeat(np.arange(len(patches)), patches.shape[1])
        kept = mechanism.select(owners, selection)
        chosen.append(patches.reshape(-1, patches.shape[2])[kept])
    rows = np.concatenate(chosen)
    if most is not None and len(rows) > most:
        rows = rows[np.sort(selection.generator.permutation(len(rows))[:most])]
    return mechanism.bound(rows)


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
