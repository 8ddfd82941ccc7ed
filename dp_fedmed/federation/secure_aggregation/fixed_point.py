"""Answers without noise as integers, for sums that masks hide: multiples of 2⁻³², times a weight.

Where nobody is protected there is no clipping norm to choose a grid by. float32 answers below 2⁷
keep all their digits; what is too large for the sum is refused by the client that has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dp_fedmed.errors import ArrayError

Arrays = Mapping[str, NDArray[Any]]
STEP: Final = 2.0**-32


def to_integers(answer: Arrays, *, weight: float, clients: int) -> dict[str, NDArray[np.int64]]:
    """An answer times its weight, in steps.

    Raises:
        ArrayError: if the sum of so many clients' answers might overflow.

    Example:
        >>> to_integers({"w": np.array([0.5])}, weight=2.0, clients=3)["w"] * STEP
        array([1.])
    """
    steps = {}
    for name, value in answer.items():
        wide = np.rint(np.asarray(value, np.float64) * (weight / STEP))
        if wide.size and not float(np.abs(wide).max()) < 2.0**62 / clients:
            raise ArrayError(f"array {name!r} is too large, or not finite, for a masked sum")
        steps[name] = wide.astype(np.int64)
    return steps


def to_mean(total: Arrays, *, weight: float) -> dict[str, NDArray[np.float64]]:
    """The weighted mean of the answers that were added up."""
    return {name: value.astype(np.float64) * (STEP / weight) for name, value in total.items()}
