"""What bounds contributions and adds noise to their sum. Adding one is a file and a line here."""

from __future__ import annotations

from typing import Any

from dp_fedmed.privacy.mechanisms.adaptive_clipping import AdaptiveClientUpdates
from dp_fedmed.privacy.mechanisms.base import Mechanism, RecordMechanism, ServerMechanism
from dp_fedmed.privacy.mechanisms.client_updates import ClientUpdates
from dp_fedmed.privacy.mechanisms.dp_sgd import DPSGD
from dp_fedmed.privacy.mechanisms.noisy_rows import NoisyRows
from dp_fedmed.privacy.mechanisms.own_noise import OwnAnswer, OwnNoise
from dp_fedmed.privacy.mechanisms.record_sums import RecordSums
from dp_fedmed.privacy.mechanisms.statistic import StatisticMean

__all__ = [
    "DPSGD",
    "MECHANISMS",
    "AdaptiveClientUpdates",
    "ClientUpdates",
    "Mechanism",
    "NoisyRows",
    "OwnAnswer",
    "OwnNoise",
    "RecordMechanism",
    "RecordSums",
    "ServerMechanism",
    "StatisticMean",
]

#: By name. `fixed` and `adaptive` are those of `privacy.user.clipping`.
MECHANISMS: dict[str, Any] = {
    "fixed": ClientUpdates,
    "adaptive": AdaptiveClientUpdates,
    "record_sums": RecordSums,
    "dp_sgd": DPSGD,
    "statistic_mean": StatisticMean,
    "noisy_rows": NoisyRows,
}
