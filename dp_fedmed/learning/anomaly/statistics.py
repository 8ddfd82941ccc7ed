"""Private statistics of images: one bounded vector per image, and only a noised sum is ever seen.

Every mechanism here has the same shape, whoever adds the noise:

1. `contributions`: one vector of norm at most 1 per image, from that image and public state alone;
2. they are summed over images and clients, and N(0, σ²) is added to the sum by somebody else;
3. `update`: the noised sum, divided by a public count, becomes the next public state;
4. `model`: after the last step, the state scores new images.

Sensitivity: step 1 looks at one image at a time, and its norm is enforced by clipping in float64,
so adding or removing one image moves the sum by at most 1 and replacing it by at most 2, whatever
the image is. Steps 3 and 4 look at released numbers and public constants only: post-processing.
T steps are T releases, each with its own noise, and the state of a step is what was released
before: adaptive composition of T Gaussian mechanisms of sensitivity 1.

For one client as the unit, the client sends the mean of its images' vectors instead of their sum:
a mean of vectors of norm at most 1 has norm at most 1, so one client moves the sum over clients by
at most 1, however many images it has; the public count is then the expected number of clients.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dp_fedmed.privacy.mechanisms.statistic import bounded
from dp_fedmed.privacy.streams.reproducible import stream

Floats = NDArray[np.float32]
Vector = NDArray[np.float64]
#: Public arrays by name: what was released so far, and the public map.
State = dict[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class PublicMap:
    """x ↦ u/‖u‖ with u = (x − offset)·matrix; a patch that is not finite becomes 0.

    It is made from public images (by default generated textures) or from a seed: it looks at no
    private record, so that it costs no privacy and is the same at every client. With
    `is_unit=False` it is u itself, of any norm: for a memory bank, which bounds nothing.

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
    """Channels standardised, then the leading principal axes, by features (n, P, channels).

    `whitening` 0 leaves the axes as they are, 1 gives them equal spread over the public images.
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


class AnomalyModel(Protocol):
    """What scores images: higher is stranger."""

    def patch_scores(self, features: NDArray[Any]) -> Floats:
        """Backbone features (n, P, channels) to one score per patch, (n, P)."""

    def image_scores(self, patch_scores: NDArray[Any]) -> NDArray[np.float64]:
        """Patch scores (n, P) to one score per image, (n,)."""


class PrivateStatistic(ABC):
    """A statistic that is released as noised sums of vectors of norm at most 1."""

    #: Releases; each needs noise of its own.
    num_steps: int

    def __init__(self, public_map: PublicMap) -> None:
        self.public_map = public_map

    @abstractmethod
    def initial_state(self) -> State:
        """The state before anything was released."""

    @abstractmethod
    def vector_size(self, step: int) -> int:
        """Length of an image's vector in a step."""

    @abstractmethod
    def update(self, state: State, mean: Vector, *, noise_std: float) -> State:
        """The state after a release: `mean` is the noised sum divided by a public count.

        `noise_std` is the standard deviation of the noise in each coordinate of `mean`.
        """

    @abstractmethod
    def units_needed(self, noise_multiplier: float) -> int:
        """Fewest units (images or clients) whose statistic is not drowned by this noise."""

    @abstractmethod
    def model(self, state: State) -> AnomalyModel:
        """What scores images, after the last step."""

    @abstractmethod
    def _vectors(self, patches: Floats, state: State) -> Vector:
        """One vector per image, from patches (n, P, dimension) of norm at most 1."""

    def vectors(self, features: NDArray[Any], state: State) -> Vector:
        """One vector per image: (n, P, channels) to (n, vector_size); a mechanism bounds them."""
        return self._vectors(self.public_map(features), state)

    def contributions(self, features: NDArray[Any], state: State) -> Vector:
        """The vectors, each of norm at most 1."""
        return bounded(self.vectors(features, state))

    def total(self, batches: Iterable[NDArray[Any]], state: State) -> tuple[Vector, int]:
        """The sum of the contributions of all images in the batches, and how many there are."""
        total, count = np.zeros(self.vector_size(step_of(state))), 0
        for features in batches:
            total += self.contributions(features, state).sum(axis=0)
            count += len(features)
        return total, count


def step_of(state: State) -> int:
    """How many releases a state has seen."""
    return int(state["step"])


def packed(matrices: NDArray[Any]) -> Vector:
    """Symmetric matrices (n, d, d) as vectors (n, d(d+1)/2) of the same Frobenius norm.

    Off-diagonal entries, which occur twice, are kept once and times √2.

    >>> packed(np.array([[[1.0, 2.0], [2.0, 3.0]]])).round(3)
    array([[1.   , 2.828, 3.   ]])
    """
    rows, columns = np.triu_indices(matrices.shape[-1])
    weight = np.where(rows == columns, 1.0, np.sqrt(2.0))
    return np.asarray(matrices[:, rows, columns] * weight, dtype=np.float64)


def unpacked(vector: NDArray[Any], dimension: int) -> NDArray[np.float64]:
    """One symmetric matrix from its packed form.

    >>> unpacked(packed(np.array([[[1.0, 2.0], [2.0, 3.0]]]))[0], 2).round(3).tolist()
    [[1.0, 2.0], [2.0, 3.0]]
    """
    rows, columns = np.triu_indices(dimension)
    matrix = np.zeros((dimension, dimension))
    matrix[rows, columns] = vector / np.where(rows == columns, 1.0, np.sqrt(2.0))
    matrix[columns, rows] = matrix[rows, columns]
    return matrix
