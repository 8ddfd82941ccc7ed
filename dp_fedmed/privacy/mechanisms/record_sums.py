"""Record-level privacy with one noise for the whole federation: the server's, or clients' shares.

A client answers the integer sum of its records' contributions, each of norm at most C. The
guarantee kept here: no client's sum is longer than its number of records allows, so that, where
clients bound each record (which they are trusted to do, as in DP-SGD), one record moves the
federation's sum by at most C and what rounding adds to it; nothing but the noised sum leaves this
module. A server that adds the noise sees exact sums: the guarantee is for those who receive the
model, not against the server. Where clients add shares of the noise, it sees the noised sum only.

The same noise protects whole clients where their sums are bounded too: projecting a client's sum
onto a ball does not lengthen what one record moves in it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dp_fedmed.privacy.accounting.events import PrivacyEvent
from dp_fedmed.privacy.mechanisms.base import Arrays, NoisedBy, State, gaussian_std, zeros_like
from dp_fedmed.privacy.mechanisms.client_updates import BELOW, ClientUpdates
from dp_fedmed.privacy.mechanisms.private_sum import PrivateSum
from dp_fedmed.privacy.mechanisms.statistic import BOUND
from dp_fedmed.privacy.streams.noise import Purpose


class RecordSums(ClientUpdates):
    """Adds up and noises the sums that clients answer in a round.

    Args:
        event: what a round costs: one client where those are protected, else one record.
        records: each client's number of records, which is public.
        share: of the clients that a round asks.
        sample_rate: q, the share of each client's records that are in a sum.
        max_norm: C of one record.
        sensitivity: how far one record moves the sum; C, and what rounding adds to it.
        noise_multiplier: σ for records; that of the event unless given.
        client_norm: the bound of one client's sum, where clients are protected too.
        noised_by: the server, or all clients together (`shares`).
    """

    purpose = Purpose.RECORD_NOISE

    def __init__(
        self,
        event: PrivacyEvent,
        *,
        records: Mapping[str, int],
        share: float = 1.0,
        sample_rate: float = 1.0,
        max_norm: float = BOUND,
        sensitivity: float | None = None,
        noise_multiplier: float | None = None,
        client_norm: float | None = None,
        noised_by: NoisedBy = "server",
    ) -> None:
        self.records, self.client_norm = dict(records), client_norm
        self.sensitivity = max_norm if sensitivity is None else sensitivity
        self.record_noise = noise_multiplier or event.noise_multiplier
        count = sum(records.values())
        super().__init__(
            event,
            max_norm=max_norm,
            expected_cohort=share * sample_rate * count,
            population=count,
            noised_by=noised_by,
        )
        self.hides_cohorts = client_norm is not None and noised_by == "server"

    @property
    def sums(self) -> PrivateSum:
        """What the sums are added up in; every client must have the same grid."""
        return PrivateSum(
            max_norm=self.max_norm,
            noise_multiplier=self.record_noise,
            contributions=self.population,
        )

    @property
    def std(self) -> float:
        """Standard deviation of the noise: enough for a record, and for a client."""
        std = gaussian_std(noise_multiplier=self.record_noise, sensitivity=self.sensitivity)
        if self.client_norm is None:
            return std
        sigma = self.event.noise_multiplier
        return max(std, gaussian_std(noise_multiplier=sigma, sensitivity=self.client_norm))

    def order(self) -> dict[str, float | str]:
        """Besides, the denominator and the noise: with others it is another release."""
        own = {"records": self.expected_cohort, "noise_std": self.std}
        return {**super().order(), **own, "client_norm": self.client_norm or 0.0}

    def answer_like(self, like: Arrays) -> Arrays:
        """Sums in steps of the grid."""
        return zeros_like(like)

    def bound(self, contribution: Arrays, /, client: str = "") -> State:
        """A client's sum; zero if it is longer than that of its records can be.

        Where clients are protected, a longer one is projected. An honest client has done so, and
        its sum passes as it is: were it left out instead, one record could move a whole sum.
        """
        steps, sums = list(contribution.values()), self.sums
        # One more than there are records: rounding may lengthen a sum by a little.
        if not sums.fits(steps, sums.max_norm * (self.records[client] + 1)):
            steps = list(zeros_like(contribution).values())
        if self.client_norm is not None and not sums.fits(steps, self.client_norm):
            steps = sums.bounded([sums.grid.values(part) for part in steps], self.client_norm)[0]
        kept = dict(zip(contribution, steps, strict=True))
        return {**kept, BELOW: np.zeros(1, np.int64)}
