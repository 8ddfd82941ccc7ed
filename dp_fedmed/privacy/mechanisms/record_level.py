"""Record-level privacy at a trusted server: noise is added once, to the federation's sum.

A client answers the mean of its records' vectors, each of norm at most 1. The guarantee kept here:
client i counts n_i times, and its answer is clipped to norm 1, so that, where clients bound each
record's vector (which they are trusted to do, as in DP-SGD), one record moves the sum by at most 1;
nothing but the sum with N(0, σ²) leaves this module. The server sees exact means: the guarantee is
for those who receive the model, not for the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dp_fedmed.config import UserPrivacyConfig
from dp_fedmed.privacy.mechanisms.client_level import ClientLevelMechanism
from dp_fedmed.privacy.streams.noise import Purpose

BOUND = 1.0


class RecordLevelMechanism(ClientLevelMechanism):
    """Sums and noises the answers of a round, each weighted by its client's records.

    Args:
        records: each client's number of records, which is public.
        noise_multiplier: σ that every client's records are charged with, or more.
        share: of the clients that a round asks.
    """

    purpose = Purpose.STATISTIC_NOISE
    hides_cohorts = False

    def __init__(
        self, records: Mapping[str, int], *, noise_multiplier: float, share: float = 1.0
    ) -> None:
        super().__init__(
            UserPrivacyConfig(max_grad_norm=BOUND),
            noise_multiplier=noise_multiplier,
            expected_cohort=share * sum(records.values()),
        )
        self.records = dict(records)

    @property
    def in_force(self) -> dict[str, float]:
        """Besides, the denominator: with other sizes it is another release."""
        return {**super().in_force, "records": self.expected_cohort}

    def add(self, update: Mapping[str, np.ndarray[Any, Any]], client: str = "") -> None:
        """Add n_i times one client's answer."""
        for name, value in self._clipped(update).items():
            self._total[name] += self.records[client] * value
