"""Record-level privacy at a trusted server: noise is added once, to the federation's sum.

A client answers the mean of its records' vectors, each of norm at most 1. The guarantee kept here:
client i counts n_i times, and its answer is clipped to norm 1, so that, where clients bound each
record's vector (which they are trusted to do, as in DP-SGD), one record moves the sum by at most 1;
nothing but the sum with N(0, σ²) leaves this module. The server sees exact means: the guarantee is
for those who receive the model, not for the server.
"""

from __future__ import annotations

from collections.abc import Mapping

from dp_fedmed.privacy.accounting.events import PrivacyEvent
from dp_fedmed.privacy.mechanisms.base import Arrays, State
from dp_fedmed.privacy.mechanisms.client_updates import BELOW, ClientUpdates
from dp_fedmed.privacy.mechanisms.statistic import BOUND
from dp_fedmed.privacy.streams.noise import Purpose


class RecordMeans(ClientUpdates):
    """Sums and noises the answers of a round, each weighted by its client's records.

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
        super().__init__(event, max_norm=BOUND, expected_cohort=share * sum(records.values()))
        self.records = dict(records)

    def order(self) -> dict[str, float | str]:
        """Besides, the denominator: with other sizes it is another release."""
        return {**super().order(), "records": self.expected_cohort}

    def bound(self, contribution: Arrays, /, client: str = "") -> State:
        """One client's clipped answer, n_i times."""
        clipped = super().bound(contribution)
        return {
            name: value if name == BELOW else self.records[client] * value
            for name, value in clipped.items()
        }
