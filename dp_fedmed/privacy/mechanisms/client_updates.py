"""Client-level privacy at the server: clip whole updates, add noise to their sum, divide by q·N.

The guarantee kept here: one client moves the sum by at most C, whatever it sends, and nothing but
the noised sum leaves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dp_fedmed.privacy.accounting.events import PrivacyEvent
from dp_fedmed.privacy.mechanisms.base import Arrays, NoisedBy, State, gaussian_std, zeros_like
from dp_fedmed.privacy.mechanisms.clipping import clip_l2
from dp_fedmed.privacy.streams.noise import Purpose
from dp_fedmed.privacy.streams.rounds import RoundStreams

#: Beside the arrays of a sum: clients below C minus clients above it, halved.
BELOW = "clipping/below"


class ClientUpdates:
    """Clips and noises the sum of a round's updates; all clients count the same.

    Args:
        event: what a round costs one client.
        max_norm: C.
        expected_cohort: q·N, the constant denominator.

    Example:
        >>> event = PrivacyEvent.full(unit="client", noise_multiplier=1.0)
        >>> mechanism = ClientUpdates(event, max_norm=1.0, expected_cohort=10.0)
        >>> float(np.linalg.norm(mechanism.bound({"w": np.array([3.0, 4.0])})["w"])) <= 1.0
        True
        >>> mechanism.cost(5)[0].count
        5
    """

    noised_by: NoisedBy = "server"
    hides_cohorts = True  # amplification by sampling rests on it
    purpose = Purpose.CLIENT_NOISE

    def __init__(self, event: PrivacyEvent, *, max_norm: float, expected_cohort: float) -> None:
        self.event, self.max_norm, self.expected_cohort = event, max_norm, expected_cohort
        self.noise_multiplier = event.noise_multiplier

    @property
    def std(self) -> float:
        """Standard deviation of the noise in each coordinate of the sum."""
        return gaussian_std(noise_multiplier=self.noise_multiplier, sensitivity=self.max_norm)

    def cost(self, rounds: int) -> Sequence[PrivacyEvent]:
        """So many releases."""
        return [self.event.times(rounds)] if rounds else []

    def order(self) -> dict[str, float | str]:
        """C and σ in force."""
        return {"clip_norm": self.max_norm, "noise_multiplier": self.noise_multiplier}

    def empty(self, like: Arrays) -> State:
        """Zeros, also for the count of updates below C."""
        return {**zeros_like(like), BELOW: np.zeros(1)}

    def bound(self, contribution: Arrays, /, client: str = "") -> State:
        """An update clipped to C as one vector; a non-finite one is zero."""
        clipped = clip_l2(list(contribution.values()), max_norm=self.max_norm)
        below = 0.0
        if not clipped.num_nonfinite:
            below = 0.5 if clipped.norm_before <= self.max_norm else -0.5
        return {**dict(zip(contribution, clipped.arrays, strict=True)), BELOW: np.array([below])}

    def release(self, total: State, streams: RoundStreams, /) -> State:
        """The noised average."""
        exact = {name: value for name, value in total.items() if name != BELOW}
        stream, std = streams.noise(self.purpose, list(exact.values())), self.std
        return {
            name: (value + stream.normal(value.shape, std=std)) / self.expected_cohort
            for name, value in exact.items()
        }

    def state(self) -> dict[str, float]:
        """C."""
        return {"clip_norm": self.max_norm}

    def restore(self, state: Mapping[str, float]) -> None:
        """Continue with this C."""
        self.max_norm = float(state["clip_norm"])
