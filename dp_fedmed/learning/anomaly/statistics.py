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
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dp_fedmed.learning.anomaly.public_map import PublicMap
from dp_fedmed.privacy.mechanisms.statistic import bounded

Floats = NDArray[np.float32]
Vector = NDArray[np.float64]
#: Public arrays by name: what was released so far, and the public map.
State = dict[str, NDArray[Any]]


class AnomalyModel(Protocol):
    """What scores images: higher is stranger."""

    def patch_scores(self, features: NDArray[Any]) -> Floats:
        """Backbone features (n, P, channels) to one score per patch, (n, P)."""

    def image_scores(self, patch_scores: NDArray[Any]) -> NDArray[np.float64]:
        """Patch scores (n, P) to one score per image, (n,)."""


class PrivateStatistic(ABC):
    """A statistic that is released as noised sums of vectors of norm at most 1.

    Attributes:
        num_steps: Releases; each needs noise of its own.
    """

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
        """The state after a release.

        Args:
            state: the state that the contributions were computed with.
            mean: the noised sum divided by a public count.
            noise_std: standard deviation of the noise in each coordinate of `mean`.
        """

    @abstractmethod
    def units_needed(self, noise_multiplier: float) -> int:
        """From how many images (or clients, where they are the unit) on a release says something.

        Below it, the noise in a step is larger than what it hides: a plan should say so.
        """

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
