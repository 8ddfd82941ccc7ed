"""The public grid on which a sum of bounded contributions is noised in integers.

The guarantee kept here: what is released is the Gaussian mechanism, rounded. The exact sum becomes
integers before any noise is added, so S + rint(z/g) = rint(S + z/g) is post-processing of S + z/g,
and no bit of it tells more about S. Floating-point noise on a floating-point sum has bits that do
(Mironov 2012, "On significance of the least significant bits for differential privacy").
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dp_fedmed.privacy import _validate
from dp_fedmed.privacy.streams.noise import NoiseStream

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
#: How far one record's clipped float32 gradient may move with the records beside it, relative to
#: C: eight times the most that was measured, and not proven
#: (tests/learning/networks/test_record_check.py).
_ROW_ROUNDING: Final = 2.0**-18


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
        steps: NDArray[np.int64] = np.rint(draws).astype(np.int64)
        return steps

    def values(self, steps: NDArray[np.int64]) -> NDArray[np.float64]:
        """What so many steps are worth."""
        return steps.astype(np.float64) * self.step

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
