"""The memory bank: distances of patches to what is normal, and the scores made of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dp_fedmed.learning.anomaly.maps import power_mean

Floats = NDArray[np.float32]

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
        found = [self._block(wanted[i : i + _BLOCK], k) for i in range(0, len(wanted), _BLOCK)]
        if not found:
            return np.empty((0, k), np.float32), np.empty((0, k), np.int64)
        return np.concatenate([d for d, _ in found]), np.concatenate([i for _, i in found])

    def _block(self, queries: Floats, k: int) -> tuple[Floats, NDArray[np.int64]]:
        # |q|² is the same for all rows: it changes no order.
        partial = (queries * np.float32(-2.0)) @ self.rows.T
        partial += self._norms
        if k == 1:
            index = partial.argmin(axis=1)[:, None]
        else:
            index = np.argpartition(partial, min(k, len(self)) - 1, axis=1)[:, :k]
        return _sorted_distances(queries, self.rows, index.astype(np.int64))

    def score(
        self, patches: Floats, *, neighbours: int = NEIGHBOURS, power: float = POWER
    ) -> tuple[float, Floats]:
        """One image's score and its patches' distances.

        The score is the power mean of the distances, times 1 − softmax weight of the nearest row m*
        of the farthest patch among m*'s own b neighbours in the bank, taken at that patch (Roth et
        al. 2022, eq. 7): a patch whose nearest normal neighbour is itself rare counts for more.

        Args:
            patches: (P, d) features of one image.
            neighbours: b; 0 leaves the weight out.
            power: infinity is the paper's largest distance; less lets several strange patches count
                for more than one.
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
