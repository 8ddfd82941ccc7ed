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
from dp_fedmed.privacy.mechanisms.base import gaussian_std
from dp_fedmed.privacy.mechanisms.clipping import clip_l2_rows
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
    def std(self) -> float:
        """Standard deviation of the noise in each coordinate: σ·C√m."""
        moved = BOUND * math.sqrt(self.rows_per_record)
        return gaussian_std(noise_multiplier=self.noise_multiplier, sensitivity=moved)

    def select(self, owners: ArrayLike, selection: NoiseStream) -> NDArray[np.intp]:
        """Indices of at most m rows per owner, drawn without looking at the rows."""
        return select_rows(owners, self.rows_per_record, selection)

    def bound(self, contribution: NDArray[Any], /) -> NDArray[Any]:
        """Rows of norm at most 1."""
        return clip_l2_rows(contribution, max_norm=BOUND).rows

    def release(self, total: NDArray[Any], streams: RoundStreams, /) -> NDArray[np.float32]:
        """Bounded rows with noise; repeating, dropping or scaling them is post-processing."""
        drawn = streams.noise(Purpose.EMBEDDING_NOISE, [total]).normal(total.shape, std=self.std)
        return np.asarray(total.astype(np.float64) + drawn, dtype=np.float32)


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
