"""`dp_gaussian`: mean and covariance of normal patches from noised sums, and Mahalanobis scores.

The first release is the mean m of all patches. The second holds two covariances: of patches around
their own image's mean x̄, and of the images' means around m. What all images have in common then no
longer uses up the norm, and the noise is several times smaller than with one release of both.

Sensitivity: patches have norm at most 1 by the public map, so ‖x̄‖ ≤ 1; then, with the released m as
a public constant, vec(mean of (x−x̄)(x−x̄)ᵀ)/radius and vec((x̄−m)(x̄−m)ᵀ)/radius are each clipped to
norm 1, and both together are divided by √2. Each vector is a function of one image and of public
numbers: one image moves the sum by at most 1. A non-finite patch is 0, a non-finite vector is 0.
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
    packed,
    step_of,
    unpacked,
)
from dp_fedmed.privacy import clip_l2_rows

_HALF = math.sqrt(0.5)


class DPGaussian(PrivateStatistic):
    """A Gaussian of normal patches within images, and one of images.

    Args:
        public_map: from backbone features to patches of norm at most 1.
        radius: norm to which an image's two covariances are clipped. It must be chosen without
            looking at the data: patches have norm 1, and 0.1 suits most.
        floor: eigenvalues of a noised covariance are raised to this many times the largest
            eigenvalue that the noise alone would have.
        image_weight: how much the strangeness of the whole image adds to that of each patch.
        power: how an image's score weighs its strangest patches.
    """

    num_steps = 2

    def __init__(
        self,
        public_map: PublicMap,
        *,
        radius: float = 0.1,
        floor: float = 0.25,
        image_weight: float = 0.3,
        power: float = 2.0,
    ) -> None:
        super().__init__(public_map)
        if not min(radius, floor, power) > 0.0 or not image_weight >= 0.0:
            raise ValueError(
                f"radius={radius!r}, floor={floor!r} and power={power!r} must be above 0, and "
                f"image_weight={image_weight!r} not below: try 0.1, 0.25, 2 and 0.3"
            )
        self.radius, self.floor = radius, floor
        self.image_weight, self.power = image_weight, power

    def initial_state(self) -> State:
        """No mean and no covariance yet."""
        d = self.public_map.dimension
        precisions = dict.fromkeys(("patch_precision", "image_precision"), np.zeros((d, d)))
        return {"step": np.array(0), "mean": np.zeros(d), **precisions}

    def vector_size(self, step: int) -> int:
        """The mean has d entries, a covariance d(d+1)/2."""
        d = self.public_map.dimension
        return d if step == 0 else d * (d + 1)

    def _vectors(self, patches: Floats, state: State) -> Vector:
        wide = patches.astype(np.float64)
        own = wide.mean(axis=1)
        if step_of(state) == 0:
            return np.asarray(own)
        gap, centred = own - state["mean"], wide - own[:, None]
        within = packed(centred.transpose(0, 2, 1) @ centred / centred.shape[1])
        between = packed(gap[:, :, None] * gap[:, None, :])
        both = [clip_l2_rows(v / self.radius, max_norm=1.0).rows for v in (within, between)]
        return np.asarray(_HALF * np.concatenate(both, axis=1))

    def update(self, state: State, mean: Vector, *, noise_std: float) -> State:
        """The mean after the first step, what the scores need after the second."""
        after = {**state, "step": np.array(step_of(state) + 1)}
        if step_of(state) == 0:
            return {**after, "mean": np.asarray(mean, dtype=np.float64)}
        noise = noise_std / _HALF * self.radius
        covariances = (
            unpacked(half * self.radius / _HALF, self.public_map.dimension)
            for half in np.split(mean, 2)
        )
        patch, image = (
            repaired_inverse(covariance, noise_std=noise, floor=self.floor)
            for covariance in covariances
        )
        return {**after, "patch_precision": patch, "image_precision": image}

    def units_needed(self, noise_multiplier: float) -> int:
        """2·d·σ: the noise's eigenvalues then reach those of an even covariance of norm 1."""
        return math.ceil(2.0 * self.public_map.dimension * noise_multiplier)

    def model(self, state: State) -> GaussianModel:
        """Mahalanobis scores."""
        return GaussianModel(
            self.public_map,
            state["mean"],
            state["patch_precision"],
            state["image_precision"],
            image_weight=self.image_weight,
            power=self.power,
        )


@dataclass(frozen=True, eq=False)
class GaussianModel:
    """Squared Mahalanobis distance per dimension of each patch from its image's mean, and of that.

    The image's mean is measured against the mean of all.
    """

    public_map: PublicMap
    mean: NDArray[np.float64]
    patch_precision: NDArray[np.float64]
    image_precision: NDArray[np.float64]
    image_weight: float
    power: float

    def patch_scores(self, features: NDArray[Any]) -> Floats:
        """(n, P, channels) to (n, P)."""
        patches = self.public_map(features)
        own = patches.mean(axis=1, keepdims=True)
        strange = _squared(patches - own, self.patch_precision)
        image = _squared(own - self.mean.astype(np.float32), self.image_precision)
        total = (strange + np.float32(self.image_weight) * image) / self.public_map.dimension
        return np.asarray(total, dtype=np.float32)

    def image_scores(self, patch_scores: NDArray[Any]) -> NDArray[np.float64]:
        """(n, P) to (n,)."""
        return power_mean(patch_scores, self.power)


def _squared(gaps: Floats, precision: NDArray[np.float64]) -> Floats:
    """gᵀ·precision·g for each g."""
    values, axes = np.linalg.eigh(precision)
    turned = gaps @ (axes * np.sqrt(np.maximum(values, 0.0))).astype(np.float32)
    return np.asarray(np.einsum("npd,npd->np", turned, turned))


def repaired_inverse(
    covariance: NDArray[np.float64], *, noise_std: float, floor: float
) -> NDArray[np.float64]:
    """The inverse of a noised covariance, after its small eigenvalues were raised.

    Noise of standard deviation τ in packed coordinates is a symmetric random matrix whose largest
    eigenvalue is about τ√(2d): what lies below a share of it is noise. Post-processing: only the
    released matrix and the public τ are used.

    >>> repaired_inverse(np.diag([4.0, -1.0]), noise_std=0.5, floor=1.0).round(2).tolist()
    [[0.25, 0.0], [0.0, 1.0]]
    """
    values, axes = np.linalg.eigh(covariance)
    d, trace = len(values), max(float(values.sum()), 0.0)
    least = max(floor * noise_std * np.sqrt(2.0 * d), 1e-3 * trace / d, 1e-9)
    return np.asarray((axes / np.maximum(values, least)) @ axes.T)
