"""The private sum: bounded contributions, added up and noised in integers on a public grid.

Everything that is released is one. The guarantees kept here: a contribution that went through
`PrivateSum.bounded` moves the sum by at most C in exact arithmetic; integer sums are exact and do
not depend on the order of their terms; and what is released is the Gaussian mechanism, rounded: the
exact sum becomes integers before any noise is added, so S + rint(z/g) = rint(S + z/g) is
post-processing of S + z/g, and no bit of it tells more about S. Floating-point noise on a
floating-point sum has bits that do (Mironov 2012, "On significance of the least significant bits
for differential privacy").
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dp_fedmed.privacy import _validate
from dp_fedmed.privacy.mechanisms.base import gaussian_std
from dp_fedmed.privacy.mechanisms.clipping import clip_l2_rows
from dp_fedmed.privacy.streams.noise import NoiseStream

Ints = NDArray[np.int64]

#: log2 of the steps in a clipping norm: fine enough that 10⁷ truncated values move a sum by a few
#: millionths of C, coarse enough that 2³¹ contributions fit into 63 bits.
BITS: Final = 30
LEAST_BITS: Final = 20
#: log2 of the steps that the noise's standard deviation spans at most. A float64 draw has 52 bits:
#: the more of them are spent on steps, the fewer values fall on one, and gaps begin to show.
_MOST_NOISE_BITS: Final = 34
#: Steps that the noise's standard deviation spans at least; below, the grid would show through.
LEAST_NOISE_STEPS: Final = 2.0**16
#: Standard deviations that no draw ever reaches (below 10⁻³⁴⁰).
_FARTHEST_DRAW: Final = 40.0
#: Unit roundoff of float64.
_ROUNDOFF: Final = 2.0**-53
#: Sums of squares above it have lost nothing to underflow.
_LEAST_SQUARES: Final = 1e-280
#: How far one record's clipped float32 gradient may move with the records beside it, relative to
#: C: eight times the most that was measured, and not proven
#: (tests/learning/networks/test_record_check.py).
_ROW_ROUNDING: Final = 2.0**-18
#: Values at a time, so that their float64 copies stay in the cache, and few enough for one thread:
#: above 10,000 OpenBLAS splits a dot product among as many threads as it has, so that the last bits
#: of a norm would be those of the machine, and on cores that are busy each waits for the others.
_BLOCK: Final = 8192
#: Contributions that a sum has room for unless a mechanism says how many there can be.
MOST_CONTRIBUTIONS: Final = 2**24


@dataclass(frozen=True, slots=True)
class Grid:
    """Multiples of ``step``, a power of two.

    Example:
        >>> grid = Grid.for_norm(1.0, noise_multiplier=1.0)
        >>> grid.truncated(np.array([1.0, -1e-12])).tolist() == [2**30, 0]
        True
    """

    step: float

    @classmethod
    def for_norm(cls, max_norm: float, *, noise_multiplier: float) -> Grid:
        """The grid of a clipping norm: 2³⁰ steps in it or more, and fewer where σ is above 16."""
        bound = _validate.positive("max_norm", max_norm)
        sigma = _validate.positive("noise_multiplier", noise_multiplier)
        bits = min(BITS, max(LEAST_BITS, _MOST_NOISE_BITS - 1 - math.ceil(math.log2(sigma))))
        return cls(2.0 ** (math.floor(math.log2(bound)) - bits))

    def require_room(self, *, max_norm: float, noise_multiplier: float, contributions: int) -> None:
        """Refuse a sum that could overflow, or whose noise is too small for the grid.

        Raises:
            ValueError: naming the number that does not fit.
        """
        in_steps = max_norm / self.step
        if noise_multiplier * in_steps < LEAST_NOISE_STEPS:
            raise ValueError(
                f"noise_multiplier={noise_multiplier:g} is too little for the grid of the private "
                f"sum: give {LEAST_NOISE_STEPS / in_steps:.1g} or more"
            )
        most = (contributions + 1 + _FARTHEST_DRAW * noise_multiplier) * in_steps * 1.01
        if most >= 2.0**62:
            raise ValueError(
                f"{contributions} contributions with noise_multiplier={noise_multiplier:g} may "
                "overflow the integers of the private sum: split the records over more clients"
            )

    def truncated(self, values: NDArray[np.float64]) -> NDArray[np.int64]:
        """Values in steps, rounded toward zero, which never lengthens a vector.

        Raises:
            OverflowError: for values that no sum of bounded contributions has.
        """
        steps = np.trunc(values / self.step)
        if steps.size and not float(np.abs(steps).max()) < 2.0**62:
            raise OverflowError("a private sum is larger than its contributions allow")
        return np.asarray(steps, dtype=np.int64)

    def noise(self, stream: NoiseStream, size: int, *, std: float) -> NDArray[np.int64]:
        """Normal noise of this standard deviation in steps, rounded to the nearest."""
        draws: NDArray[Any] = stream.normal(size, std=std / self.step)
        steps: NDArray[np.int64] = np.rint(draws, out=draws).astype(np.int64)
        return steps

    def values(self, steps: NDArray[np.int64]) -> NDArray[np.float64]:
        """What so many steps are worth."""
        values = steps.astype(np.float64)
        values *= self.step
        return values

    def sensitivity(
        self, *, max_norm: float, dimension: int, contributions: int, rows_together: int
    ) -> float:
        """How far one contribution can move a truncated float64 sum: C, and what rounding adds.

        Written down term by term, relative to C unless said otherwise:
        norms of d numbers in float64 are right to d·2⁻⁵³; a float64 sum of n clipped vectors, in
        any order, is right to (n + 2)·n·2⁻⁵³ (Higham 2002, section 4.2), with and without the
        contribution; other rows of the same piece may be rounded differently, each by 2⁻¹⁸; and
        truncating both sums moves each of d values by up to one step.

        Args:
            max_norm: C.
            dimension: d, the values of a contribution.
            contributions: n, how many may be in the sum.
            rows_together: how many are computed in one piece.
        """
        norms = 2.0 * dimension * _ROUNDOFF
        sums = 2.0 * (contributions + 2.0) * contributions * _ROUNDOFF
        rows = rows_together * _ROW_ROUNDING
        return max_norm * (1.0 + norms + sums + rows) + math.sqrt(dimension) * self.step


@dataclass(frozen=True, kw_only=True)
class PrivateSum:
    """Bounds contributions to norm C, adds them up in integers, and releases the sum with noise.

    Args:
        max_norm: C.
        noise_multiplier: σ; noise of standard deviation σC is in the released sum.
        contributions: the most that a sum may have.

    Raises:
        ValueError: if the integers or the grid have no room for that.

    Example:
        >>> sums = PrivateSum(max_norm=1.0, noise_multiplier=2.0)
        >>> steps, norm = sums.bounded([np.array([3.0, -4.0])])
        >>> norm, (steps[0] * sums.grid.step).round(6).tolist()
        (5.0, [0.6, -0.8])
    """

    max_norm: float
    noise_multiplier: float
    contributions: int = MOST_CONTRIBUTIONS

    def __post_init__(self) -> None:
        self.grid.require_room(
            max_norm=self.max_norm,
            noise_multiplier=self.noise_multiplier,
            contributions=self.contributions,
        )

    @property
    def grid(self) -> Grid:
        """The public grid."""
        return Grid.for_norm(self.max_norm, noise_multiplier=self.noise_multiplier)

    @property
    def std(self) -> float:
        """Standard deviation of the noise in each coordinate of the sum."""
        return gaussian_std(noise_multiplier=self.noise_multiplier, sensitivity=self.max_norm)

    def bounded(
        self, arrays: Sequence[NDArray[Any]], max_norm: float | None = None
    ) -> tuple[list[Ints], float]:
        """Arrays, taken as one vector, in steps of the grid; and the vector's norm before.

        The norm of what is returned is at most C (or `max_norm`) in exact arithmetic: a float64
        norm of d numbers is right to d·2⁻⁵³ (Higham 2002, section 3.1), vectors are clipped that
        much below C, and truncation never lengthens them. A vector that is not finite becomes
        zero, and has an infinite norm.
        """
        flat = [np.asarray(array).reshape(-1) for array in arrays]
        bound = self.max_norm if max_norm is None else max_norm
        limit = _below(bound, sum(part.size for part in flat))
        norm, peak = _norm(flat)
        factor = 0.0
        if math.isfinite(norm):
            factor = (limit / norm if norm * peak > limit else peak) / self.grid.step
        return [
            _truncated(part, factor, peak).reshape(np.shape(array))
            for part, array in zip(flat, arrays, strict=True)
        ], norm * peak

    def bounded_rows(self, rows: NDArray[Any], max_norm: float | None = None) -> Ints:
        """Each row of a matrix in steps of the grid, its norm at most C or what is given."""
        limit = _below(self.max_norm if max_norm is None else max_norm, rows.shape[1])
        wide = np.asarray(rows, dtype=np.float64)
        return self.grid.truncated(clip_l2_rows(wide, max_norm=limit).rows)

    def fits(self, arrays: Sequence[Ints], max_norm: float | None = None) -> bool:
        """Whether integers of another party have at most norm C, or the one given.

        What `bounded` made always fits, whatever zeros stand beside it: only numbers other than
        zero can make a norm wrong, so only they count for the margin. Four more are for turning
        integers above 2⁵³ into floats, for the root and for the product below.
        """
        flat = [part.reshape(-1) for part in arrays]
        dimension = sum(int(np.count_nonzero(part)) for part in flat)
        bound = self.max_norm if max_norm is None else max_norm
        limit = bound * (1.0 - (dimension + 4.0) * _ROUNDOFF)
        return _norm(flat)[0] <= limit / self.grid.step

    def projection_rounding(self, max_norm: float, dimension: int) -> float:
        """How far apart two sums may be moved by `bounded`, besides truncation, by rounding."""
        return max_norm * (dimension + 8.0) * 4.0 * _ROUNDOFF

    def projected_sensitivity(self, max_norm: float, dimension: int) -> float:
        """How far one contribution can move a sum of them that is then projected to a norm."""
        truncation = math.sqrt(dimension) * self.grid.step
        return self.max_norm + truncation + self.projection_rounding(max_norm, dimension)

    def release(
        self,
        total: Sequence[Ints],
        stream: NoiseStream,
        *,
        std: float | None = None,
        denominator: float = 1.0,
    ) -> list[NDArray[np.float64]]:
        """The noised sum over a public constant; an empty sum too is noised.

        Args:
            total: the exact sum.
            stream: the secret stream that hides it.
            std: of the noise; `std` of this sum unless a mechanism adds another amount.
            denominator: whatever the sum has in it.
        """
        grid, scale = self.grid, self.std if std is None else std
        noise = grid.noise(stream, sum(part.size for part in total), std=scale)
        released, start = [], 0
        for part in total:
            own = noise[start : start + part.size].reshape(part.shape)
            own += part
            values = grid.values(own)
            values /= denominator
            released.append(values)
            start += part.size
        return released


def _below(bound: float, dimension: int) -> float:
    """So far below a bound that a float64 norm of so many numbers cannot be wrong about it."""
    return bound * (1.0 - (dimension + 8.0) * 2.0 * _ROUNDOFF)


def _wide(flat: NDArray[Any], peak: float = 1.0) -> Iterator[NDArray[np.float64]]:
    for start in range(0, flat.size, _BLOCK):
        part = flat[start : start + _BLOCK].astype(np.float64, copy=False)
        yield part if peak == 1.0 else part / peak


def _norm(flat: Sequence[NDArray[Any]]) -> tuple[float, float]:
    """(norm of arrays over a power of two, that power): 1 unless squares overflow or vanish."""
    with np.errstate(over="ignore", invalid="ignore"):
        squares = _sum(float(np.dot(w, w)) for part in flat for w in _wide(part))
        if _LEAST_SQUARES < squares < math.inf:
            return math.sqrt(squares), 1.0
        if not all(np.isfinite(part).all() for part in flat):
            return math.inf, 1.0
        largest = max((float(np.abs(part).max(initial=0.0)) for part in flat), default=0.0)
        peak = 2.0 ** (math.frexp(largest)[1] - 1)
        squares = math.fsum(float(np.dot(w, w)) for part in flat for w in _wide(part, peak))
        return math.sqrt(squares), peak


def _sum(terms: Iterable[float]) -> float:
    try:
        return math.fsum(terms)
    except OverflowError:  # finite terms whose sum is not
        return math.inf


def _truncated(flat: NDArray[Any], factor: float, peak: float) -> Ints:
    """Values over a power of two times a factor, rounded toward zero; a factor of 0 gives zeros."""
    if not factor > 0.0:
        return np.zeros(flat.size, dtype=np.int64)
    steps = np.empty(flat.size, dtype=np.int64)
    product, start = np.empty(min(flat.size, _BLOCK)), 0
    for part in _wide(flat, peak):
        own = np.multiply(part, factor, out=product[: part.size])
        steps[start : start + part.size] = own
        start += part.size
    return steps
