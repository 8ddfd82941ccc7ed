"""`dp_prototypes`: where normal patches are, as public anchors moved by noised sums (DP-Lloyd).

Each step assigns an image's patches to their nearest prototypes. Its vector holds, per prototype,
the share of the image's patches that it received and the sum of their offsets from it, divided by
the number of patches: noise is added to sums over all images of all clients.

Sensitivity: with P patches, share k is c_k ≥ 0 with Σ c_k ≤ 1, so ‖c‖₂ ≤ Σ c_k ≤ 1. An offset is
clipped to norm `radius`, so block k of the offset sums over P has norm at most c_k·radius, and all
blocks together at most radius·Σ c_k ≤ radius. The vector [√a·c, √(1−a)·offsets/radius] then has
norm at most 1, and clipping enforces it. The assignment depends on the image and on released or
public prototypes only: no other image can change it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dp_fedmed.learning.anomaly.metrics import power_mean
from dp_fedmed.learning.anomaly.statistics import (
    Floats,
    PrivateStatistic,
    PublicMap,
    State,
    Vector,
    step_of,
)


class DPPrototypes(PrivateStatistic):
    """Prototypes of normal patches and how often each occurs.

    Args:
        public_map: from backbone features to patches of norm at most 1.
        anchors: (K, d) public starting prototypes, such as a k-center of public images' patches.
        num_steps: T Lloyd steps.
        radius: norm to which a patch's offset from its prototype is clipped.
        count_share: a, the part of the squared norm that is spent on the shares.
        bandwidth: width of the bell around each prototype in the final density.
        power: how an image's score weighs its strangest patches.
    """

    def __init__(
        self,
        public_map: PublicMap,
        anchors: NDArray[Any],
        *,
        num_steps: int = 2,
        radius: float = 1.0,
        count_share: float = 0.5,
        bandwidth: float = 0.15,
        power: float = 1.0,
    ) -> None:
        super().__init__(public_map)
        self.anchors = np.asarray(anchors, dtype=np.float64)
        if self.anchors.ndim != 2 or self.anchors.shape[1] != public_map.dimension:
            wanted = f"give (K, {public_map.dimension})"
            raise ValueError(f"anchors have shape {self.anchors.shape}: {wanted}")
        if num_steps < 1 or not 0.0 < count_share < 1.0 or not radius > 0.0:
            raise ValueError(
                f"num_steps={num_steps!r}, count_share={count_share!r}, radius={radius!r}: try "
                "num_steps=2, count_share=0.5, radius=1"
            )
        self.num_steps, self.radius, self.count_share = num_steps, radius, count_share
        self.bandwidth, self.power = bandwidth, power

    def initial_state(self) -> State:
        """The anchors, equally often."""
        shares = np.full(len(self.anchors), 1.0 / len(self.anchors))
        return {"step": np.array(0), "prototypes": self.anchors, "shares": shares}

    def vector_size(self, step: int) -> int:
        """K shares and K offset sums."""
        return int(self.anchors.shape[0] * (1 + self.anchors.shape[1]))

    def _vectors(self, patches: Floats, state: State) -> Vector:
        prototypes = state["prototypes"]
        count, d = prototypes.shape
        vectors = np.zeros((len(patches), count * (1 + d)))
        for i, rows in enumerate(patches.astype(np.float64)):
            nearest = _nearest(rows, prototypes)
            sums = np.zeros((count, d))
            np.add.at(sums, nearest, self._shortened(rows - prototypes[nearest]))
            shares = np.bincount(nearest, minlength=count)
            vectors[i, :count] = np.sqrt(self.count_share) * shares
            vectors[i, count:] = np.sqrt(1 - self.count_share) * sums.ravel() / self.radius
        return np.asarray(vectors / patches.shape[1])

    def update(self, state: State, mean: Vector, *, noise_std: float) -> State:
        """Prototypes move to the mean of their patches; one whose share is noise stays.

        A move is shrunk by share²/(share² + noise²) and never longer than the radius.
        """
        prototypes = state["prototypes"]
        count, d = prototypes.shape
        shares = mean[:count] / np.sqrt(self.count_share)
        offsets = mean[count:].reshape(count, d) * self.radius / np.sqrt(1 - self.count_share)
        noise = noise_std / np.sqrt(self.count_share)
        positive = np.maximum(shares, 0.0)[:, None]
        # The noise in a move is that of d coordinates: trust a share that stands out against it.
        trust = positive / (positive**2 + d * noise**2 + 1e-12)
        moved = prototypes + self._shortened(offsets * trust)
        kept = np.where(shares > 2.0 * noise, shares, 0.0)
        total = kept.sum()
        kept = kept / total if total > 0 else np.full(count, 1.0 / count)
        return {"step": np.array(step_of(state) + 1), "prototypes": moved, "shares": kept}

    def _shortened(self, vectors: NDArray[np.float64]) -> NDArray[np.float64]:
        """Vectors of at most the radius."""
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        return np.asarray(vectors * np.minimum(1.0, self.radius / np.maximum(norms, 1e-12)))

    def units_needed(self, noise_multiplier: float) -> int:
        """K·σ·√(d/(1−a)): a prototype with its even share then moves by more than the noise."""
        count, d = self.anchors.shape
        noise = noise_multiplier * math.sqrt(d / (1.0 - self.count_share))
        return math.ceil(int(count) * noise)

    def model(self, state: State) -> PrototypeModel:
        """Minus the log-density of the prototypes."""
        return PrototypeModel(
            self.public_map, state["prototypes"], state["shares"], self.bandwidth, self.power
        )


@dataclass(frozen=True, eq=False)
class PrototypeModel:
    """Bells around the prototypes, weighted by their shares."""

    public_map: PublicMap
    prototypes: NDArray[np.float64]
    shares: NDArray[np.float64]
    bandwidth: float
    power: float

    def patch_scores(self, features: NDArray[Any]) -> Floats:
        """−2h²·log Σ share·exp(−distance²/2h²), shifted to be at least 0: (n, P)."""
        patches = self.public_map(features)
        used = self.shares > 0
        centres = self.prototypes[used].astype(np.float32)
        norms = (patches**2).sum(axis=2)[..., None]
        squared = norms - 2.0 * patches @ centres.T + (centres**2).sum(axis=1)
        width = np.float32(2.0 * self.bandwidth**2)
        exponent = np.log(self.shares[used]).astype(np.float32) - squared / width
        peak = exponent.max(axis=2)
        density = peak + np.log(np.exp(exponent - peak[..., None]).sum(axis=2))
        return np.asarray(np.maximum(-density, 0.0) * width, dtype=np.float32)

    def image_scores(self, patch_scores: NDArray[Any]) -> NDArray[np.float64]:
        """(n, P) to (n,)."""
        return power_mean(patch_scores, self.power)


def _nearest(rows: NDArray[np.float64], prototypes: NDArray[np.float64]) -> NDArray[np.intp]:
    partial = -2.0 * rows @ prototypes.T + np.einsum("kd,kd->k", prototypes, prototypes)
    return np.asarray(partial.argmin(axis=1))
