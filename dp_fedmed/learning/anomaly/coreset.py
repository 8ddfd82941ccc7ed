"""Greedy k-center: a small set of rows such that every other row is near one of them.

Time O(N·k·d), extra memory O(N): a distance per row, never a matrix of distances.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from dp_fedmed.privacy.streams.reproducible import stream

Floats = NDArray[np.float32]
Progress = Callable[[int, int], None]

#: Selection looks at random projections to this many dimensions. On magnetic tiles with 128
#: dimensions, 64 costs 0.012 of image AUROC and 32 costs 0.017.
SELECTION_DIMENSION = 128


def coreset_size(num_rows: int, *, ratio: float | None = None, size: int | None = None) -> int:
    """How many rows a coreset has: `size`, or a share of the rows, never more than there are.

    >>> coreset_size(5000, ratio=0.1), coreset_size(100, size=2000)
    (500, 100)
    """
    if (ratio is None) == (size is None):
        raise ValueError("give coreset_ratio (for example 0.1) or coreset_size, and not both")
    if ratio is not None and not 0.0 < ratio <= 1.0:
        raise ValueError(f"coreset_ratio={ratio!r} must be in (0, 1], for example 0.1")
    if size is not None and size < 1:
        raise ValueError(f"coreset_size={size!r} must be at least 1, for example 2000")
    wanted = size if size is not None else math.ceil(num_rows * (ratio or 1.0))
    return min(num_rows, wanted)


def greedy_k_center(
    rows: Floats,
    size: int,
    *,
    seed: int = 0,
    projection: int | None = SELECTION_DIMENSION,
    start: int | None = None,
    progress: Progress | None = None,
) -> NDArray[np.int64]:
    """Positions of `size` rows, each the farthest from those before it (Gonzalez 1985).

    Args:
        rows: (N, d) features; they must be finite.
        size: k; all rows are returned when there are not more.
        seed: decides the starting row and the projection.
        projection: distances are measured after a random projection to this many dimensions, which
            changes them by some percent and costs d/projection times less; rows with no more
            dimensions, and None, are measured exactly. What is returned are positions of the rows
            as they were given.
        start: the first position; it is part of the result.
        progress: called with (rows chosen, rows wanted), about a hundred times.

    >>> greedy_k_center(np.array([[0.0], [1.0], [9.0], [5.0]], np.float32), 3, start=0)
    array([0, 2, 3])
    """
    count, dimension = rows.shape
    if size >= count:
        return np.arange(count)
    rng = stream(seed, "k-center")
    first = int(rng.integers(count)) if start is None else start
    points = np.asarray(rows, dtype=np.float32)
    if projection is not None and projection < dimension:
        axes = rng.standard_normal((dimension, projection), dtype=np.float32)
        points = points @ (axes / np.float32(math.sqrt(projection)))
    # Near a common centre, norms are small and |x|² − 2x·c + |c|² loses no digits that matter.
    points = points - points.mean(axis=0)
    return _farthest_first(points, size, first, progress)


def _farthest_first(
    points: Floats, size: int, first: int, progress: Progress | None
) -> NDArray[np.int64]:
    norms = np.einsum("nd,nd->n", points, points)
    if not np.isfinite(norms).all():
        raise ValueError("rows have values that are not finite: leave those rows out")
    chosen = np.empty(size, dtype=np.int64)
    chosen[0] = first
    # The least of |c|² − 2x·c over the centres so far; adding |x|² gives the squared distance.
    least = np.full(len(points), np.inf, dtype=np.float32)
    distance = np.empty(len(points), dtype=np.float32)
    every = max(1, size // 100)
    for i in range(1, size):
        centre = chosen[i - 1]
        np.dot(points, np.float32(-2.0) * points[centre], out=distance)
        distance += norms[centre]
        np.minimum(least, distance, out=least)
        # A chosen row stays at −∞ for good, so that no row is chosen twice.
        least[centre] = -np.inf
        np.add(norms, least, out=distance)
        chosen[i] = np.argmax(distance)
        if progress is not None and (i + 1) % every == 0:
            progress(i + 1, size)
    if progress is not None:
        progress(size, size)
    return chosen


def merge_banks(
    banks: Sequence[Floats], size: int, *, seed: int = 0, progress: Progress | None = None
) -> Floats:
    """One bank from the clients' banks: the k-center of their union.

    Every row counts the same, whoever sent it and however many images stand behind it. Where each
    bank covers its client's rows within r, and the merged bank the union within R, every row of
    every client is within r + R of the merged bank.

    >>> merge_banks([np.zeros((3, 2), np.float32), np.ones((2, 2), np.float32)], 2).sum()
    np.float32(2.0)
    """
    union = np.concatenate(list(banks))
    return union[greedy_k_center(union, size, seed=seed, progress=progress)]
