"""DP-SGD's sum of per-record gradients on an integer grid, as one client releases it.

The guarantee kept here: every step releases the sum of contributions of norm at most C, one per
record of a Poisson batch, plus N(0, σ²Δ²), added in integers; Δ is C and what rounding can add to
it. Gradients are computed elsewhere; here are the factors that clip them, and the noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dp_fedmed.privacy.accounting.events import Adjacency, PrivacyEvent
from dp_fedmed.privacy.mechanisms.base import NoisedBy, Stateless, gaussian_std
from dp_fedmed.privacy.mechanisms.private_sum import Grid, Ints, PrivateSum
from dp_fedmed.privacy.mechanisms.statistic import record_costs
from dp_fedmed.privacy.streams.noise import NoiseStream

Sum = list[NDArray[Any]]
#: Values of per-record gradients that are in memory at once; larger networks take fewer records.
MOST_VALUES = 2**27


@dataclass(frozen=True, kw_only=True)
class DPSGD(Stateless):
    """What one client does in one round.

    Attributes:
        noise_multiplier: σ of each step.
        max_grad_norm: C.
        sample_rate: q of the Poisson batches.
        steps: of a round.
        grad_mode: how per-record gradients are computed; part of what streams depend on.
        physical_batch_size: records in memory at once.
        noised_by: the client, after every step; or, for the sum of one step of all clients, the
            server or all clients together.
        client_norm: the bound of the whole sum, where one noise protects clients too.
    """

    noise_multiplier: float
    max_grad_norm: float
    sample_rate: float
    steps: int
    grad_mode: str
    physical_batch_size: int
    adjacency: Adjacency = "zero_out"
    noised_by: NoisedBy = "client"
    client_norm: float | None = None
    hides_cohorts = False

    @property
    def sums(self) -> PrivateSum:
        """What the gradients of a step are added up in."""
        return PrivateSum(max_norm=self.max_grad_norm, noise_multiplier=self.noise_multiplier)

    @property
    def grid(self) -> Grid:
        """The public grid of the sums."""
        return self.sums.grid

    def cost(self, rounds: int) -> Sequence[PrivacyEvent]:
        """`steps` releases per round."""
        return record_costs(self, rounds)

    def order(self) -> dict[str, float | str]:
        """σ, C, q, the steps, and how gradients are computed and added up."""
        return {
            "noise_multiplier": self.noise_multiplier,
            "max_grad_norm": self.max_grad_norm,
            "sample_rate": self.sample_rate,
            "steps": self.steps,
            "grad_mode": str(self.grad_mode),
            "grid": self.grid.step,
            "noised_by": self.noised_by,
            "client_norm": self.client_norm or 0.0,
        }

    def bound(self, contribution: NDArray[np.float64], /) -> NDArray[np.float64]:
        """What each record's gradient is multiplied with, by its norm: at most C/norm.

        A record whose gradient is not finite counts nothing.

        >>> plan = DPSGD(noise_multiplier=1.0, max_grad_norm=1.0, sample_rate=1.0, steps=1,
        ...              grad_mode="hooks", physical_batch_size=1)
        >>> plan.bound(np.array([0.5, 4.0, np.inf])).tolist()
        [1.0, 0.25, 0.0]
        """
        return clip_factors(contribution, self.max_grad_norm)

    def sensitivity(self, *, weights: int, records: int) -> float:
        """How far one record can move the sum: C, and what rounding adds to it."""
        moved = self.grid.sensitivity(
            max_norm=self.max_grad_norm,
            dimension=weights,
            contributions=records,
            rows_together=2 * self.physical_batch_size + 32,  # a block rarely holds more
        )
        if self.client_norm is None:
            return moved
        return moved + self.sums.projection_rounding(self.client_norm, weights)

    def exact_sum(self, total: Sum) -> list[Ints]:
        """A batch's sum in steps of the grid, as one noise for the sum of all wants it."""
        if self.client_norm is None:
            return [self.grid.truncated(part) for part in total]
        return self.sums.bounded(total, self.client_norm)[0]

    def require_room(self, records: int) -> None:
        """Refuse sums that do not fit onto the grid.

        Raises:
            ValueError: naming the number that does not fit.
        """
        self.grid.require_room(
            max_norm=self.max_grad_norm,
            noise_multiplier=self.noise_multiplier,
            contributions=records,
        )

    def release(
        self,
        total: Sum,
        streams: Callable[[Sum], NoiseStream],
        /,
        *,
        sensitivity: float | None = None,
        denominator: float = 1.0,
    ) -> Sum:
        """The sum on the grid, noised, over the expected batch.

        Args:
            total: float64 sums of clipped gradients, one per parameter.
            streams: the secret stream that hides the exact sum.
            sensitivity: as `sensitivity` gives it; C unless given.
            denominator: q·n, whoever was drawn.
        """
        exact = [self.grid.truncated(part) for part in total]
        moved = self.max_grad_norm if sensitivity is None else sensitivity
        std = gaussian_std(noise_multiplier=self.noise_multiplier, sensitivity=moved)
        return list(self.sums.release(exact, streams(exact), std=std, denominator=denominator))

    def records_per_block(self, weights: int) -> int:
        """How many of a client's records, counted by their numbers, are computed together.

        Blocks are fixed by number, not by who was drawn: a record changes the rounding of its own
        block's rows and of no other's.
        """
        together = min(self.physical_batch_size, max(1, MOST_VALUES // max(1, weights)))
        if self.sample_rate >= 1.0:
            return together
        return max(1, int(0.75 * together / self.sample_rate))  # rarely more are drawn than fit


def clip_factors(norms: NDArray[np.float64], max_norm: float) -> NDArray[np.float64]:
    """C/norm, at most 1; 0 where a norm is not finite."""
    with np.errstate(over="ignore"):  # a zero gradient needs no factor
        factors = np.minimum(max_norm / np.maximum(norms, 1e-300), 1.0)
    return np.where(np.isfinite(norms), factors, 0.0)
