"""The memory bank: which normal patches it keeps, and the distances of other patches to them.

Rows are chosen by greedy k-center: every other row is near a chosen one. Time O(N·k·d), extra
memory O(N): a distance per row, never a matrix of distances.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dp_fedmed.learning.anomaly.metrics import power_mean
from dp_fedmed.privacy.streams.reproducible import stream

Floats = NDArray[np.float32]
Progress = Callable[[int, int], None]

#: Selection looks at random projections to this many dimensions. On magnetic tiles with 128
#: dimensions, 64 costs 0.012 of image AUROC and 32 costs 0.017.
SELECTION_DIMENSION = 128

#: Neighbours in the bank that decide how much a score is trusted (b in Roth et al. 2022).
NEIGHBOURS = 9
#: Between the mean (1) and the maximum (infinity) of an image's distances.
POWER = 10.0
_BLOCK = 4096


class MemoryBank:
    """Rows of normal patches, with exact nearest-neighbour search.

    faiss searches where it is installed, else blocked matrix products do; both return the same.

    >>> bank = MemoryBank(np.eye(3, dtype=np.float32))
    >>> distance, index = bank.nearest(np.array([[0.0, 3.0, 0.0]], np.float32))
    >>> distance.tolist(), index.tolist()
    ([[2.0]], [[1]])
    """

    def __init__(self, rows: NDArray[Any], *, use_faiss: bool | None = None) -> None:
        self.rows: Floats = np.ascontiguousarray(rows, dtype=np.float32)
        if self.rows.ndim != 2 or len(self.rows) == 0:
            raise ValueError(f"a memory bank needs rows of shape (k, d), got {self.rows.shape}")
        if not np.isfinite(self.rows).all():
            raise ValueError("a memory bank cannot hold values that are not finite")
        self._norms = np.einsum("nd,nd->n", self.rows, self.rows)
        self._faiss = _faiss_index(self.rows) if use_faiss in (None, True) else None
        if use_faiss and self._faiss is None:
            raise ImportError("use_faiss=True needs faiss: pip install faiss-cpu")

    def __len__(self) -> int:
        return len(self.rows)

    def nearest(self, queries: NDArray[Any], k: int = 1) -> tuple[Floats, NDArray[np.int64]]:
        """Euclidean distances to the k nearest rows and their positions, both (n, k), ascending."""
        wanted = np.ascontiguousarray(queries, dtype=np.float32)
        k = min(k, len(self))
        if self._faiss is not None:
            _, index = self._faiss.search(wanted, k)
            return _sorted_distances(wanted, self.rows, np.asarray(index, dtype=np.int64))
        starts = range(0, max(1, len(wanted)), _BLOCK)
        found = [self._block(wanted[start : start + _BLOCK], k) for start in starts]
        return np.concatenate([d for d, _ in found]), np.concatenate([i for _, i in found])

    def _block(self, queries: Floats, k: int) -> tuple[Floats, NDArray[np.int64]]:
        # |q|² is the same for all rows: it changes no order.
        partial = (queries * np.float32(-2.0)) @ self.rows.T
        partial += self._norms
        if k == 1:
            index = partial.argmin(axis=1)[:, None]
        else:
            index = np.argpartition(partial, k - 1, axis=1)[:, :k]
        return _sorted_distances(queries, self.rows, index.astype(np.int64))

    def score(
        self, patches: Floats, *, neighbours: int = NEIGHBOURS, power: float = POWER
    ) -> tuple[float, Floats]:
        """One image's score and its patches' distances.

        The score is the power mean of the distances, times 1 − softmax weight of the nearest row m*
        of the farthest patch among m*'s own b neighbours in the bank, taken at that patch (Roth et
        al. 2022, eq. 7): a patch whose nearest normal neighbour is itself rare counts for more.
        `neighbours` is b, and 0 leaves the weight out; `power` infinity is the paper's largest
        distance, and less lets several strange patches count for more than one.
        """
        distance, index = self.nearest(patches)
        worst = int(distance[:, 0].argmax())
        score = float(power_mean(distance.T, power)[0])
        if neighbours > 1 and len(self) > 1:
            largest = float(distance[worst, 0])
            score *= self._weight(patches[worst], int(index[worst, 0]), largest, neighbours)
        return score, distance[:, 0]

    def patch_scores(self, features: NDArray[Any]) -> Floats:
        """Distances (n, P) of the patches (n, P, d) of several images."""
        n, count, d = features.shape
        return self.nearest(features.reshape(n * count, d))[0].reshape(n, count)

    def _weight(self, patch: Floats, nearest: int, distance: float, neighbours: int) -> float:
        _, around = self.nearest(self.rows[nearest][None], neighbours)
        members = np.union1d(around[0], [nearest])
        far = np.linalg.norm((self.rows[members] - patch).astype(np.float64), axis=1)
        return float(1.0 - 1.0 / np.exp(far - distance).clip(max=1e300).sum())


def _sorted_distances(
    queries: Floats, rows: Floats, index: NDArray[np.int64]
) -> tuple[Floats, NDArray[np.int64]]:
    """Distances computed without cancellation, in ascending order."""
    distance = np.empty(index.shape, np.float32)
    for column in range(index.shape[1]):
        gap = queries - rows[index[:, column]]
        distance[:, column] = np.sqrt(np.einsum("nd,nd->n", gap, gap))
    if index.shape[1] == 1:
        return distance, index
    order = np.argsort(distance, axis=1, kind="stable")
    return np.take_along_axis(distance, order, 1), np.take_along_axis(index, order, 1)


def _faiss_index(rows: Floats) -> Any | None:
    try:
        import faiss
    except ImportError:
        return None
    index = faiss.IndexFlatL2(rows.shape[1])
    index.add(rows)
    return index


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
        rows: (N, d) finite features.
        size: k; all rows are returned when there are not more.
        seed: decides the starting row and the projection.
        projection: distances are measured after a random projection to this many dimensions, which
            changes them by some percent and costs d/projection times less; None measures exactly.
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
