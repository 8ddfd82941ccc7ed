"""Client-level privacy whose C follows a quantile of the updates' norms (Andrew et al. 2021).

Besides the noised sum, one noised count of updates below C is released in every round; the two
together cost what the event says.
"""

from __future__ import annotations

import math

from dp_fedmed.errors import ConfigError
from dp_fedmed.privacy.accounting.events import PrivacyEvent
from dp_fedmed.privacy.mechanisms.base import State
from dp_fedmed.privacy.mechanisms.client_updates import BELOW, ClientUpdates
from dp_fedmed.privacy.mechanisms.private_sum import MOST_CONTRIBUTIONS, PrivateSum
from dp_fedmed.privacy.streams.noise import Purpose
from dp_fedmed.privacy.streams.rounds import RoundStreams


class AdaptiveClientUpdates(ClientUpdates):
    """As `ClientUpdates`, with the next round's C from this round's noised count.

    Args:
        event: what a round costs one client.
        max_norm: C of the first round.
        expected_cohort: q·N.
        quantile: share of updates that should lie below C.
        learning_rate: how fast C moves.
        population: N.

    Raises:
        ConfigError: if the expected cohort is too small to carry the count.
    """

    def __init__(
        self,
        event: PrivacyEvent,
        *,
        max_norm: float,
        expected_cohort: float,
        quantile: float,
        learning_rate: float,
        population: int = MOST_CONTRIBUTIONS,
    ) -> None:
        super().__init__(
            event, max_norm=max_norm, expected_cohort=expected_cohort, population=population
        )
        self.quantile, self.learning_rate = quantile, learning_rate
        self.count_noise, self.noise_multiplier = split_noise(
            event.noise_multiplier, expected_cohort
        )
        # A client counts for ±½, so that noise of σ_b is 2σ_b times what it can move.
        self.counts = PrivateSum(
            max_norm=0.5, noise_multiplier=2.0 * self.count_noise, contributions=population
        )

    def release(self, total: State, streams: RoundStreams, /) -> State:
        """The noised average, then C ← C·exp(−η(b̃ − γ)): too many updates below C shrink it."""
        average = super().release(total, streams)
        halves = total[BELOW] * int(0.5 / self.counts.grid.step)
        stream = streams.noise(Purpose.CLIPPING_NOISE, [halves])
        (noised,) = self.counts.release(
            [halves], stream, std=self.count_noise, denominator=self.expected_cohort
        )
        share = float(noised[0]) + 0.5
        self.max_norm *= math.exp(-self.learning_rate * (share - self.quantile))
        return average


def split_noise(noise_multiplier: float, expected_cohort: float) -> tuple[float, float]:
    """(σ_b, σ_Δ): noise of the count and of the updates that together cost σ (Andrew et al. 2021).

    The count adds ±½ per client, so σ⁻² = σ_Δ⁻² + (2σ_b)⁻²; σ_b is a twentieth of the cohort.

    >>> count, update = split_noise(1.0, 100.0)
    >>> count, round(update, 4), round(update**-2 + (2 * count) ** -2, 9)
    (5.0, 1.005, 1.0)
    """
    count_noise = expected_cohort / 20.0
    if 2.0 * count_noise <= 1.1 * noise_multiplier:
        raise ConfigError(
            f"privacy.user.clipping=adaptive needs a larger expected cohort: "
            f"federation.sample_rate · federation.num_clients = {expected_cohort:g} cannot carry a "
            f"count of clipped updates beside noise_multiplier={noise_multiplier:.3g}; use "
            f"privacy.user.clipping=fixed, or an expected cohort above {11 * noise_multiplier:.0f}"
        )
    return count_noise, (noise_multiplier**-2 - (2.0 * count_noise) ** -2) ** -0.5
