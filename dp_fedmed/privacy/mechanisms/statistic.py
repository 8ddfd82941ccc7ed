"""The sum of one client's bounded vectors, one per record, noised by that client.

The guarantee kept here: each vector has norm at most 1, so one record moves the sum by at most 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dp_fedmed.privacy.accounting.events import Adjacency, PrivacyEvent, record_event
from dp_fedmed.privacy.mechanisms.base import NoisedBy, Stateless
from dp_fedmed.privacy.mechanisms.clipping import clip_l2_rows
from dp_fedmed.privacy.mechanisms.private_sum import Ints, PrivateSum
from dp_fedmed.privacy.streams.noise import Purpose
from dp_fedmed.privacy.streams.rounds import RoundStreams

#: The norm of one record's vector, in every statistic and step.
BOUND = 1.0


def bounded(vectors: NDArray[Any]) -> NDArray[np.float64]:
    """Vectors (n, size), each clipped to norm 1; one that is not finite is zero."""
    return np.asarray(clip_l2_rows(vectors, max_norm=BOUND).rows, dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class OneRelease(Stateless):
    """What one client's records are charged with in a round: one release of all of them.

    Attributes:
        noise_multiplier: σ.
        noised_by: the client; or, for the sum of all (`RecordSums`), the server or all clients.
        client_norm: the bound of the whole sum, where one noise protects clients too.
    """

    noise_multiplier: float
    noised_by: NoisedBy = "client"
    client_norm: float | None = None
    sample_rate: float = 1.0
    steps: int = 1
    adjacency: Adjacency = "zero_out"
    hides_cohorts = False

    def cost(self, rounds: int) -> Sequence[PrivacyEvent]:
        """One Gaussian release per round."""
        return record_costs(self, rounds)

    def order(self) -> dict[str, float | str]:
        """σ, the bound, and who adds the noise."""
        return {
            "noise_multiplier": self.noise_multiplier,
            "max_grad_norm": BOUND,
            "sample_rate": self.sample_rate,
            "steps": self.steps,
            "noised_by": self.noised_by,
            "client_norm": self.client_norm or 0.0,
        }


@dataclass(frozen=True, kw_only=True)
class StatisticMean(OneRelease):
    """The mean of one vector per record; the exact sum where one noise is for the sum of all.

    Attributes:
        records: n, the public denominator.
    """

    records: int

    @property
    def sums(self) -> PrivateSum:
        """What the vectors are added up in."""
        return PrivateSum(
            max_norm=BOUND,
            noise_multiplier=self.noise_multiplier,
            contributions=max(1, self.records),
        )

    @property
    def std(self) -> float:
        """Standard deviation of the noise in each coordinate of the mean."""
        return self.sums.std / max(1, self.records)

    def order(self) -> dict[str, float | str]:
        """Besides, the grid."""
        return {**super().order(), "grid": self.sums.grid.step}

    def sensitivity(self, *, weights: int) -> float:
        """How far one record can move the sum: 1, and what projecting the sum adds to it."""
        if self.client_norm is None:
            return BOUND
        return self.sums.projected_sensitivity(self.client_norm, weights)

    def bound(self, contribution: NDArray[Any], /) -> Ints:
        """Vectors of norm at most 1, in steps of the grid."""
        return self.sums.bounded_rows(contribution)

    def release(self, total: Ints, streams: RoundStreams, /) -> NDArray[Any]:
        """The noised mean, or the exact sum if one noise is for the sum of all."""
        if self.noised_by != "client":
            if self.client_norm is None:
                return total
            return self.sums.bounded([self.sums.grid.values(total)], self.client_norm)[0][0]
        stream = streams.noise(Purpose.STATISTIC_NOISE, [total])
        return self.sums.release([total], stream, denominator=max(1, self.records))[0]


def record_costs(mechanism: Any, rounds: int) -> Sequence[PrivacyEvent]:
    """`steps` releases per round with a client's records."""
    if not rounds:
        return []
    return [
        record_event(
            noise_multiplier=mechanism.noise_multiplier,
            sample_rate=mechanism.sample_rate,
            steps=mechanism.steps * rounds,
            adjacency=mechanism.adjacency,
        )
    ]
