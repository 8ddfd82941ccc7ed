"""Client-level privacy: clip whole updates, add noise to their sum, divide by q·N.

The guarantee kept here, where the server draws the noise: one client moves the sum by at most C,
whatever it sends, and nothing but the noised sum leaves. Where clients draw it, each bounds and
noises its own update by this same object, and protects itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from dp_fedmed.privacy.accounting.events import PrivacyEvent
from dp_fedmed.privacy.mechanisms.base import Arrays, NoisedBy, State, gaussian_std, zeros_like
from dp_fedmed.privacy.mechanisms.private_sum import MOST_CONTRIBUTIONS, PrivateSum
from dp_fedmed.privacy.streams.noise import Purpose
from dp_fedmed.privacy.streams.rounds import RoundStreams

#: Beside the arrays of a sum: clients below C minus clients above it.
BELOW = "clipping/below"
#: Standard deviations by which the norm of noise never exceeds √d of them.
_FARTHEST = 40.0


class ClientUpdates:
    """Clips and noises the sum of a round's updates; all clients count the same.

    Args:
        event: what a round costs one client.
        max_norm: C.
        expected_cohort: q·N, the constant denominator.
        population: N, the most clients that a round may have.
        noised_by: the server; or each client, all of the noise or a share of it.

    Raises:
        ValueError: if the integers of the sum have no room for that.

    Example:
        >>> event = PrivacyEvent.full(unit="client", noise_multiplier=1.0)
        >>> mechanism = ClientUpdates(event, max_norm=1.0, expected_cohort=10.0)
        >>> steps = mechanism.bound({"w": np.array([3.0, 4.0])})["w"]
        >>> (steps * mechanism.sums.grid.step).round(6).tolist()
        [0.6, 0.8]
        >>> mechanism.cost(5)[0].count
        5
    """

    purpose = Purpose.CLIENT_NOISE

    def __init__(
        self,
        event: PrivacyEvent,
        *,
        max_norm: float,
        expected_cohort: float,
        population: int = MOST_CONTRIBUTIONS,
        noised_by: NoisedBy = "server",
    ) -> None:
        self.noised_by = noised_by
        # Amplification by sampling rests on it; whoever draws noise knows that it takes part.
        self.hides_cohorts = noised_by == "server"
        self.event, self.max_norm, self.expected_cohort = event, max_norm, expected_cohort
        self.noise_multiplier, self.population = event.noise_multiplier, population
        self.sums  # noqa: B018  # refuses what has no room, before the first round

    @property
    def sums(self) -> PrivateSum:
        """What updates are added up in; its grid follows C."""
        return PrivateSum(
            max_norm=self.max_norm,
            noise_multiplier=self.event.noise_multiplier,
            contributions=self.population,
        )

    @property
    def std(self) -> float:
        """Standard deviation of the noise in each coordinate of the sum."""
        return gaussian_std(noise_multiplier=self.noise_multiplier, sensitivity=self.max_norm)

    def cost(self, rounds: int) -> Sequence[PrivacyEvent]:
        """So many releases."""
        return [self.event.times(rounds)] if rounds else []

    def order(self) -> dict[str, float | str]:
        """C, σ and the grid in force."""
        own = {"noised_by": self.noised_by} if self.noised_by != "server" else {}
        return {
            "clip_norm": self.max_norm,
            "noise_multiplier": self.noise_multiplier,
            "grid": self.sums.grid.step,
            **own,
        }

    def answer_like(self, like: Arrays) -> Arrays:
        """The update itself, or integers where the client has noised it."""
        return like if self.noised_by == "server" else zeros_like(like)

    def empty(self, like: Arrays) -> State:
        """Zeros, also for the count of updates below C."""
        return {**zeros_like(like), BELOW: np.zeros(1, np.int64)}

    def clipped(self, update: Arrays) -> tuple[State, float]:
        """An update in steps of the grid, clipped to C as one vector; and its norm before."""
        steps, norm = self.sums.bounded(list(update.values()))
        return dict(zip(update, steps, strict=True)), norm

    def bound(self, contribution: Arrays, /, client: str = "") -> State:
        """An update clipped to C as one vector; a non-finite one is zero.

        One that its client has clipped and noised is left out if no noise could make it so long.
        """
        if self.noised_by != "server":
            return self._plausible(contribution)
        steps, norm = self.clipped(contribution)
        below = 0 if norm == np.inf else (1 if norm <= self.max_norm else -1)
        return {**steps, BELOW: np.array([below])}

    def release(self, total: State, streams: RoundStreams, /) -> State:
        """The noised average; clients may have noised the sum before."""
        exact = {name: value for name, value in total.items() if name != BELOW}
        if self.noised_by != "server":
            grid = self.sums.grid
            return {
                name: (grid.values(value) / self.expected_cohort).astype(np.float32)
                for name, value in exact.items()
            }
        released = self.sums.release(
            list(exact.values()),
            streams.noise(self.purpose, list(exact.values())),
            std=self.std,
            denominator=self.expected_cohort,
        )
        return {n: v.astype(np.float32) for n, v in zip(exact, released, strict=True)}

    def _plausible(self, contribution: Arrays) -> State:
        steps = list(contribution.values())
        drawn = self.std * (_FARTHEST + math.sqrt(sum(part.size for part in steps)))
        if not self.sums.fits(steps, self.max_norm + drawn):
            contribution = zeros_like(contribution)
        return {**contribution, BELOW: np.zeros(1, np.int64)}

    def state(self) -> dict[str, float]:
        """C."""
        return {"clip_norm": self.max_norm}

    def restore(self, state: Mapping[str, float]) -> None:
        """Continue with this C."""
        self.max_norm = float(state["clip_norm"])
