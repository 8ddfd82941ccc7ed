"""A strategy's ledger and observer, as small as they can be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dp_fedmed.federation import arrays as model_arrays
from dp_fedmed.federation.privacy_guard import PrivacyGuard
from dp_fedmed.federation.rounds import RoundObserver, RoundRecord
from dp_fedmed.privacy.streams.rounds import RoundStreams


@dataclass
class Paid:
    """What a private round is paid with."""

    guard: PrivacyGuard
    streams: Callable[[int, model_arrays.State], RoundStreams]


class Kept(RoundObserver):
    """Evaluates nothing, and hands on what happened in each round."""

    def __init__(self, keep: Callable[[RoundRecord], object]) -> None:
        self.keep = keep

    def end_round(self, record: RoundRecord) -> None:
        self.keep(record)
