"""What a run's report promises one record, and one client, against whoever has the model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dp_fedmed.privacy import History, PrivacyEvent, chained_epsilon

FOR_RECORD, FOR_CLIENT = "the guarantee for a record", "the guarantee for a client"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """An (ε, δ) that bounds every attack, and where it comes from.

    >>> claim = Claim(epsilon=1.0, delta=0.0, source=FOR_RECORD)
    >>> round(float(claim.tpr(0.01)), 4), round(claim.advantage, 4)
    (0.0272, 0.4621)
    """

    epsilon: float
    delta: float
    source: str

    def tpr(self, fpr: Any) -> Any:
        """The most that any attack can reach at this FPR.

        TPR ≤ e^ε·FPR + δ, and the same with the roles exchanged: 1 − FPR ≤ e^ε·(1 − TPR) + δ
        (Kairouz, Oh & Viswanath 2015).
        """
        at = np.asarray(fpr, dtype=np.float64)
        forth = at * math.exp(min(self.epsilon, 700.0)) + self.delta
        back = 1.0 - np.maximum(1.0 - at - self.delta, 0.0) * math.exp(-self.epsilon)
        return np.clip(np.minimum(forth, back), 0.0, 1.0)

    @property
    def advantage(self) -> float:
        """The most that TPR − FPR can be."""
        share = math.tanh(self.epsilon / 2.0)  # (e^ε − 1)/(e^ε + 1)
        return min(1.0, share + self.delta * (1.0 - share))


def record_claim(report: Mapping[str, Any]) -> Claim | None:
    """The smallest ε for one record that follows from the report; None where nothing does."""
    claims = [
        _claim(each, FOR_RECORD) if each["unit"] == "record" else _record_within_client(each)
        for each in report["guarantees"]
    ]
    found = [claim for claim in claims if math.isfinite(claim.epsilon)]
    return min(found, key=lambda claim: claim.epsilon, default=None)


def client_claim(report: Mapping[str, Any]) -> Claim | None:
    """The guarantee for a whole client, if there is one."""
    held = (each for each in report["guarantees"] if each["unit"] == "client")
    return next((_claim(each, FOR_CLIENT) for each in held), None)


def _claim(guarantee: Mapping[str, Any], source: str) -> Claim:
    epsilon, delta = float(guarantee["epsilon"]), float(guarantee["delta"])
    return Claim(epsilon=epsilon, delta=delta, source=source)


def _record_within_client(guarantee: Mapping[str, Any]) -> Claim:
    """What a client-level guarantee is worth for one record of a client.

    A client with one record less is another client in its place. Where neighbours differ by a
    client that is there or not, that is two steps: the old one goes, the new one comes.
    """
    claim = _claim(guarantee, FOR_CLIENT)
    if guarantee.get("adjacency") == "replace_one":
        return claim
    history = History(
        PrivacyEvent.poisson(unit="client", noise_multiplier=sigma, sample_rate=q, count=int(steps))
        for sigma, q, steps in guarantee["history"]
    )
    return Claim(
        epsilon=chained_epsilon(history, size=2, delta=claim.delta) if history else 0.0,
        delta=claim.delta,
        source=f"{FOR_CLIENT}, twice: one goes, and comes back without the record",
    )
