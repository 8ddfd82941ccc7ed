"""What a regression predicts, in public constants: a unit, a range, and cuts between low and high.

The guarantee kept here: targets are scaled, binned and checked by numbers that were known before
anybody's record was seen, and by one record at a time. A mean or a quantile of a site's own targets
would be a release.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dp_fedmed.errors import ConfigError

Array = NDArray[Any]
#: Cuts of a scaled target that has none of its own: quarters of the public range.
QUARTERS = (-0.5, 0.0, 0.5)


@dataclass(frozen=True, kw_only=True)
class Target:
    """One number that a record has, as everybody knows it beforehand.

    Attributes:
        low: the least that it can be, in its unit.
        high: the most.
        name: what it is called in tables and figures.
        unit: of the number, in words; may be empty.
        edges: published cuts (quartiles, clinical limits) in the unit; quarters of the range unless
            given. Splits keep the bins between them in proportion, and `dirichlet` and
            `pathological` take them for classes.

    >>> dose = Target(low=0.0, high=200.0, unit="mg")
    >>> dose.scaled(np.array([0.0, 150.0, 200.0])).tolist()
    [-1.0, 0.5, 1.0]
    >>> dose.bins(dose.scaled(np.array([0.0, 150.0, 200.0]))).tolist(), dose.bin_names[0]
    ([0, 3, 3], '0–50 mg')
    """

    low: float
    high: float
    name: str = "target"
    unit: str = ""
    edges: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        cuts = (self.low, *self.edges, self.high)
        if not np.isfinite(cuts).all() or any(b <= a for a, b in pairwise(cuts)):
            raise ConfigError(
                f"the target {self.name!r} has low={self.low!r}, edges={self.edges!r}, "
                f"high={self.high!r}: give finite numbers that rise, for example low=0, high=100"
            )

    @property
    def half_range(self) -> float:
        """How much of the unit a scaled 1 is."""
        return (self.high - self.low) / 2.0

    def scaled(self, values: Array) -> NDArray[np.float32]:
        """Values as `Records.y` holds them: the public range becomes [-1, 1]."""
        middle = (self.high + self.low) / 2.0
        scaled = (np.asarray(values, np.float64) - middle) / self.half_range
        return np.asarray(scaled, dtype=np.float32)

    def in_unit(self, scaled: Array) -> NDArray[np.float64]:
        """Scaled values back in the unit."""
        middle = (self.high + self.low) / 2.0
        return np.asarray(scaled, np.float64) * self.half_range + middle

    def bins(self, scaled: Array) -> NDArray[np.int64]:
        """Which bin each scaled value is in."""
        return binned(scaled, tuple(self.scaled(np.array(self.edges)).tolist()) or QUARTERS)

    @property
    def bin_names(self) -> tuple[str, ...]:
        """The bins in words, lowest first."""
        cuts = self.in_unit(np.array(QUARTERS)).tolist() if not self.edges else self.edges
        ends = [f"{value:.4g}" for value in (self.low, *cuts, self.high)]
        unit = f" {self.unit}" if self.unit else ""
        return tuple(f"{a}–{b}{unit}" for a, b in pairwise(ends))


def binned(scaled: Array, edges: tuple[float, ...] = QUARTERS) -> NDArray[np.int64]:
    """The bin of each record by public cuts; of several targets, the first one's.

    >>> binned(np.array([-0.9, -0.1, 0.2, 1.0])).tolist()
    [0, 1, 2, 3]
    """
    first = scaled.reshape(len(scaled), -1)[:, 0]
    return np.asarray(np.digitize(first, edges), dtype=np.int64)


def refuse_targets(name: str, y: Array, targets: tuple[Target, ...]) -> None:
    """Targets that are no finite numbers, outside their public range, or not as many as named.

    No value is told: the message may leave a site.

    Raises:
        ConfigError: saying what to change.
    """
    if y.reshape(len(y), -1).shape[1] != len(targets):
        raise ConfigError(
            f"the {name} part has targets of shape {y.shape[1:]}, but {len(targets)} are described:"
            " give DataSet(targets=(Target(low=..., high=...),)) one Target per column"
        )
    if not np.isfinite(y).all():
        raise ConfigError(
            f"the {name} part has targets that are not finite numbers: leave those records out"
        )
    if (np.abs(y) > 1.0 + 1e-6).any():
        ranges = ", ".join(f"{t.name} from {t.low:g} to {t.high:g}" for t in targets)
        raise ConfigError(
            f"the {name} part has targets outside their public range ({ranges}): scale them with "
            "Target.scaled, widen low and high, or leave those records out"
        )
