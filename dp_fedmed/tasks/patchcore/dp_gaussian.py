"""`dp_gaussian`: mean and covariance of normal patches from noised sums, and Mahalanobis scores.

In one step, an image's vector is [x̄, vec(mean of xxᵀ)] over its patches x. In two steps the first
release is the mean, and the second the covariance around the released mean: what all images have
in common then no longer uses up the norm, and the noise on the covariance is several times smaller.

Sensitivity: patches have norm at most 1 by the public map. One step: ‖x̄‖ ≤ 1 and ‖mean of xxᵀ‖ ≤
mean of ‖x‖² ≤ 1, so [x̄, vec]/√2 has norm at most 1. Two steps: ‖x̄‖ ≤ 1; then, with the released
centre m as a public constant, vec(mean of (x−m)(x−m)ᵀ)/radius is clipped to norm 1. Each is a
function of one image and of public numbers: one image moves the sum by at most 1. A non-finite
patch is 0, a non-finite vector is 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dp_fedmed.tasks.patchcore.maps import power_mean
from dp_fedmed.tasks.patchcore.public_map import PublicMap
from dp_fedmed.tasks.patchcore.statistics import (
    Floats,
    PrivateStatistic,
    State,
    Vector,
    packed,
    step_of,
    unpacked,
)

#: Image score: the mean over patches of the Mahalanobis distance to the power 2·POWER.
POWER = 2.0


class DPGaussian(PrivateStatistic):
    """A Gaussian of normal patches.

    Args:
        public_map: from backbone features to patches of norm at most 1.
        num_steps: 2, or 1 for mean and second moment in a single release.
        radius: norm to which an image's covariance around the released mean is clipped. It must be
            chosen without looking at the data: patches have norm 1, and 0.2 suits most.
        floor: eigenvalues of the noised covariance are raised to this many times the largest
            eigenvalue that the noise alone would have.
        power: how an image's score weighs its strangest patches.
    """

    def __init__(
        self,
        public_map: PublicMap,
        *,
        num_steps: int = 2,
        radius: float = 0.2,
        floor: float = 0.5,
        power: float = POWER,
    ) -> None:
        super().__init__(public_map)
        if num_steps not in (1, 2):
            raise ValueError(f"num_steps={num_steps!r} must be 1 or 2")
        if not radius > 0.0 or not floor > 0.0 or not power > 0.0:
            raise ValueError(
                f"radius={radius!r}, floor={floor!r} and power={power!r} must be above 0: try "
                "radius=0.2, floor=0.5, power=2"
            )
        self.num_steps = num_steps
        self.radius, self.floor, self.power = radius, floor, power

    def initial_state(self) -> State:
        """No mean and no covariance yet."""
        d = self.public_map.dimension
        return {"step": np.array(0), "mean": np.zeros(d), "precision": np.zeros((d, d))}

    def vector_size(self, step: int) -> int:
        """The mean has d entries, the covariance d(d+1)/2; one step has both."""
        d = self.public_map.dimension
        if self.num_steps == 1:
            return d + d * (d + 1) // 2
        return d if step == 0 else d * (d + 1) // 2

    def _vectors(self, patches: Floats, state: State) -> Vector:
        wide = patches.astype(np.float64)
        if self.num_steps == 1:
            both = [wide.mean(axis=1), packed(_second_moments(wide))]
            return np.asarray(np.concatenate(both, axis=1) / np.sqrt(2.0))
        if step_of(state) == 0:
            return np.asarray(wide.mean(axis=1))
        return np.asarray(packed(_second_moments(wide - state["mean"])) / self.radius)

    def update(self, state: State, mean: Vector, *, noise_std: float) -> State:
        """The mean after the first of two steps, else mean and inverse covariance."""
        d = self.public_map.dimension
        step = np.array(step_of(state) + 1)
        if self.num_steps == 2 and step == 1:
            return {**state, "step": step, "mean": np.asarray(mean, dtype=np.float64)}
        if self.num_steps == 1:
            centre, moments, scale = mean[:d] * np.sqrt(2.0), mean[d:], np.sqrt(2.0)
            covariance = unpacked(moments * scale, d) - np.outer(centre, centre)
        else:
            centre, scale = state["mean"], self.radius
            covariance = unpacked(mean * scale, d)
        precision = repaired_inverse(covariance, noise_std=noise_std * scale, floor=self.floor)
        return {**state, "step": step, "mean": centre, "precision": precision}

    def units_needed(self, noise_multiplier: float) -> int:
        """√2·d·σ: the noise's eigenvalues then reach those of an even covariance of norm 1."""
        return math.ceil(math.sqrt(2.0) * self.public_map.dimension * noise_multiplier)

    def model(self, state: State) -> GaussianModel:
        """Mahalanobis scores."""
        return GaussianModel(self.public_map, state["mean"], state["precision"], self.power)


@dataclass(frozen=True, eq=False)
class GaussianModel:
    """Squared Mahalanobis distance of each patch, and its power mean over an image."""

    public_map: PublicMap
    mean: NDArray[np.float64]
    precision: NDArray[np.float64]
    power: float

    def patch_scores(self, features: NDArray[Any]) -> Floats:
        """(n, P, channels) to (n, P)."""
        values, axes = np.linalg.eigh(self.precision)
        root = (axes * np.sqrt(np.maximum(values, 0.0))).astype(np.float32)
        turned = (self.public_map(features) - self.mean.astype(np.float32)) @ root
        return np.asarray(np.einsum("npd,npd->np", turned, turned), dtype=np.float32)

    def image_scores(self, patch_scores: NDArray[Any]) -> NDArray[np.float64]:
        """(n, P) to (n,)."""
        return power_mean(patch_scores, self.power)


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
    d = len(values)
    least = max(
        floor * noise_std * np.sqrt(2.0 * d), 1e-3 * max(float(values.sum()), 0.0) / d, 1e-9
    )
    return np.asarray((axes / np.maximum(values, least)) @ axes.T)


def _second_moments(patches: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(patches.transpose(0, 2, 1) @ patches / patches.shape[1])
