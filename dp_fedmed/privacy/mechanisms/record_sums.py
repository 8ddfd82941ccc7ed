"""Record-level privacy with one noise for the whole federation, added by the server.

A client answers the integer sum of its records' contributions, each of norm at most C. The
guarantee kept here: no client's sum is longer than its number of records allows, so that, where
clients bound each record (which they are trusted to do, as in DP-SGD), one record moves the
federation's sum by at most C; nothing but the noised sum leaves this module. The server sees exact
sums: the guarantee is for those who receive the model, not against the server.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dp_fedmed.privacy.accounting.events import PrivacyEvent
from dp_fedmed.privacy.mechanisms.base import Arrays, State, zeros_like
from dp_fedmed.privacy.mechanisms.client_updates import BELOW, ClientUpdates
from dp_fedmed.privacy.mechanisms.statistic import BOUND
from dp_fedmed.privacy.streams.noise import Purpose


class RecordSums(ClientUpdates):
    """Adds up and noises the sums that clients answer in a round.

    Args:
        event: what a round costs one record of any client, or more.
        records: each client's number of records, which is public.
        share: of the clients that a round asks.
    """

    hides_cohorts = False
    purpose = Purpose.STATISTIC_NOISE

    def __init__(
        self, event: PrivacyEvent, *, records: Mapping[str, int], share: float = 1.0
    ) -> None:
        super().__init__(
            event,
            max_norm=BOUND,
            expected_cohort=share * sum(records.values()),
            population=sum(records.values()),
        )
        self.records = dict(records)

    def order(self) -> dict[str, float | str]:
        """Besides, the denominator: with other sizes it is another release."""
        return {**super().order(), "records": self.expected_cohort}

    def answer_like(self, like: Arrays) -> Arrays:
        """Sums in steps of the grid."""
        return zeros_like(like)

    def bound(self, contribution: Arrays, /, client: str = "") -> State:
        """A client's sum; zero if it is longer than that of its records can be."""
        fits = self.sums.fits(list(contribution.values()), times=self.records[client])
        kept = dict(contribution) if fits else zeros_like(contribution)
        return {**kept, BELOW: np.zeros(1, np.int64)}
