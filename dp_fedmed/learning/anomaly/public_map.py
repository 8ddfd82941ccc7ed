"""A public map from backbone features to short vectors, of norm at most 1 where they are noised.

The map is made from public images (by default generated textures) or from a seed: it looks at no
private record, so that it costs no privacy and is the same at every client.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dp_fedmed.privacy.streams.reproducible import stream

Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class PublicMap:
    """x ↦ u/‖u‖ with u = (x − offset)·matrix; a patch that is not finite becomes 0.

    With `is_unit=False` it is u itself, of any norm: for a memory bank, which bounds nothing.

    >>> import numpy as np
    >>> two = PublicMap(np.zeros(2, np.float32), np.eye(2, dtype=np.float32))
    >>> two(np.array([[[3.0, 4.0], [np.nan, 1.0]]], np.float32)).round(2).tolist()
    [[[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]]
    """

    offset: Floats
    matrix: Floats
    is_unit: bool = True

    @property
    def dimension(self) -> int:
        """Length of a mapped patch."""
        return int(self.matrix.shape[1])

    def __call__(self, features: NDArray[Any]) -> Floats:
        """Patches (n, P, channels) as (n, P, dimension) of norm at most 1."""
        with np.errstate(invalid="ignore", over="ignore"):
            mapped = (np.asarray(features, dtype=np.float32) - self.offset) @ self.matrix
        mapped = np.where(np.isfinite(mapped).all(axis=-1, keepdims=True), mapped, np.float32(0.0))
        if not self.is_unit:
            return np.asarray(mapped, dtype=np.float32)
        wide = mapped.astype(np.float64)
        norms = np.linalg.norm(wide, axis=-1, keepdims=True)
        # A hair below 1, so that rounding to float32 cannot leave the unit ball.
        unit = wide / np.maximum(norms, 1e-30) * (1.0 - 1e-6)
        return np.asarray(np.where(norms > 0, unit, 0.0), dtype=np.float32)


def random_map(channels: int, dimension: int, *, seed: int = 0) -> PublicMap:
    """A random orthogonal projection, for want of public images.

    >>> random_map(10, 4).matrix.shape
    (10, 4)
    """
    _check(dimension, channels)
    normal = stream(seed, "public-map", channels).standard_normal((channels, dimension))
    axes = np.linalg.qr(normal)[0]
    return PublicMap(np.zeros(channels, np.float32), axes.astype(np.float32))


def fit_public_map(public: NDArray[Any], dimension: int, *, whitening: float = 0.5) -> PublicMap:
    """Channels standardised, then the leading principal axes, by the features of public images.

    Args:
        public: (n, P, channels) features of images that anybody may see.
        dimension: axes that are kept.
        whitening: 0 leaves the axes as they are, 1 gives them equal spread over the public images.
    """
    rows = np.asarray(public, dtype=np.float64).reshape(-1, public.shape[-1])
    _check(dimension, rows.shape[1])
    offset = rows.mean(axis=0)
    scale = rows.std(axis=0) + 1e-3
    spread, axes = np.linalg.eigh(np.cov((rows - offset).T / scale[:, None]))
    kept = slice(len(spread) - dimension, None)
    weight = np.maximum(spread[kept], 1e-6) ** (-0.5 * whitening)
    matrix = axes[:, kept] * weight / scale[:, None]
    return PublicMap(offset.astype(np.float32), matrix.astype(np.float32))


def _check(dimension: int, channels: int) -> None:
    if not 1 <= dimension <= channels:
        raise ValueError(
            f"dimension={dimension} must be from 1 to the {channels} channels of the backbone's "
            f"layers, for example {min(64, channels)}"
        )
