"""A matrix of single rows, each with noise: rows do not add up, so each carries all of it.

Sensitivity: at most m rows per record are drawn by a secret stream that looks at public counts
only, and each is clipped to norm C = 1. Replacing one record therefore changes at most m rows, each
by at most 2C, and moves the matrix by at most 2C√m. The number of rows is public, so neighbours
differ by a replaced record, never by one more or less: noise of standard deviation σ·C√m is
accounted as a Gaussian of σ/2 (`PrivacyEvent` with adjacency `replace_one`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dp_fedmed.privacy.accounting.events import Adjacency
from dp_fedmed.privacy.mechanisms.private_sum import Ints, PrivateSum
from dp_fedmed.privacy.mechanisms.statistic import BOUND, OneRelease
from dp_fedmed.privacy.streams.noise import NoiseStream, Purpose
from dp_fedmed.privacy.streams.rounds import RoundStreams


@dataclass(frozen=True, kw_only=True)
class NoisyRows(OneRelease):
    """Draws, clips and noises the rows of one client.

    Attributes:
        rows_per_record: m.
    """

    rows_per_record: int = 1
    adjacency: Adjacency = "replace_one"

    @property
    def sums(self) -> PrivateSum:
        """Each row is a sum of one contribution; a record moves all of them by C√m, halved."""
        moved = BOUND * math.sqrt(self.rows_per_record)
        return PrivateSum(max_norm=moved, noise_multiplier=self.noise_multiplier, contributions=1)

    @property
    def std(self) -> float:
        """Standard deviation of the noise in each coordinate: σ·C√m."""
        return self.sums.std

    def select(self, owners: ArrayLike, selection: NoiseStream) -> NDArray[np.intp]:
        """Indices of at most m rows per owner, drawn without looking at the rows."""
        return select_rows(owners, self.rows_per_record, selection)

    def bound(self, contribution: NDArray[Any], /) -> Ints:
        """Rows of norm at most 1, in steps of the grid."""
        return self.sums.bounded_rows(contribution, max_norm=BOUND)

    def release(self, total: Ints, streams: RoundStreams, /) -> NDArray[np.float32]:
        """Bounded rows with noise; repeating, dropping or scaling them is post-processing."""
        stream = streams.noise(Purpose.EMBEDDING_NOISE, [total])
        return self.sums.release([total], stream)[0].astype(np.float32)


def select_rows(owners: ArrayLike, most: int, selection: NoiseStream) -> NDArray[np.intp]:
    """Indices of at most so many rows per owner.

    >>> select_rows([0, 0, 1], 1, NoiseStream.from_public_seed(1)).shape
    (2,)
    """
    ids = np.asarray(owners).reshape(-1)
    chosen = [
        selection.generator.permutation(np.flatnonzero(ids == owner))[:most]
        for owner in np.unique(ids)
    ]
    return np.sort(np.concatenate(chosen)) if chosen else np.zeros(0, dtype=np.intp)
