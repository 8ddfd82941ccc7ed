"""Client-level privacy at the server: clip each whole update, add noise to the sum, divide by q·N.

The guarantee kept here: one client moves the sum by at most the C in force, whatever it sends, and
nothing but the noised sum (and, with adaptive clipping, one noised count) leaves this module.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dp_fedmed.config import Clipping, UserPrivacyConfig
from dp_fedmed.errors import ConfigError
from dp_fedmed.privacy.mechanisms.clipping import clip_l2
from dp_fedmed.privacy.streams.noise import Purpose
from dp_fedmed.run.journal import inputs_digest
from dp_fedmed.site.keys import RoundSecrets

logger = logging.getLogger(__name__)

State = dict[str, np.ndarray[Any, Any]]


class ClientLevelMechanism:
    """Clips, sums and noises the updates of a round.

    Args:
        config: the user-level settings.
        noise_multiplier: σ that the accountant is charged with.
        expected_cohort: q·N, the constant denominator.

    Raises:
        ConfigError: for adaptive clipping with an expected cohort too small to carry it.
    """

    purpose = Purpose.CLIENT_NOISE
    hides_cohorts = True  # amplification by sampling rests on it

    def __init__(
        self, config: UserPrivacyConfig, *, noise_multiplier: float, expected_cohort: float
    ) -> None:
        self.clip_norm = config.max_grad_norm
        self.expected_cohort = expected_cohort
        self.update_noise = noise_multiplier
        self.count_noise: float | None = None
        self.quantile, self.clip_lr = config.target_quantile, config.clip_lr
        if config.clipping is Clipping.adaptive:
            self.count_noise, self.update_noise = split_noise(noise_multiplier, expected_cohort)
        self._total: State = {}
        self._below = 0.0

    @property
    def in_force(self) -> dict[str, float]:
        """C and the noise of this round, for the streams to depend on."""
        return {"clip_norm": self.clip_norm, "noise_multiplier": self.update_noise}

    def start(self, like: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Begin a round with an empty sum of arrays like these."""
        self._total = {name: np.zeros(value.shape) for name, value in like.items()}
        self._below = 0.0

    def add(self, update: Mapping[str, np.ndarray[Any, Any]], client: str = "") -> None:
        """Add one client's update; all clients count the same."""
        for name, value in self._clipped(update).items():
            self._total[name] += value

    def _clipped(self, update: Mapping[str, np.ndarray[Any, Any]]) -> State:
        """An update clipped as one vector; a non-finite one is zero."""
        clipped = clip_l2([update[name] for name in self._total], max_norm=self.clip_norm)
        if not clipped.num_nonfinite:
            self._below += 0.5 if clipped.norm_before <= self.clip_norm else -0.5
        return dict(zip(self._total, clipped.arrays, strict=True))

    def inputs(self, secrets: RoundSecrets) -> str:
        """A keyed digest of all that is about to be noised, as the ledger may hold it."""
        exact = [*self._total.values(), np.array([self._below])]
        return inputs_digest(secrets.key.private_digest(exact))

    def release(self, secrets: RoundSecrets) -> State:
        """The noised average; then, if clipping adapts, the C of the next round."""
        exact = list(self._total.values())
        stream = secrets.noise(self.purpose, exact)
        std = self.update_noise * self.clip_norm
        average = {
            name: (value + stream.normal(value.shape, std=std)) / self.expected_cohort
            for name, value in self._total.items()
        }
        if self.count_noise is not None:
            self._adapt(secrets, self.count_noise)
        return average

    def _adapt(self, secrets: RoundSecrets, count_noise: float) -> None:
        """C ← C·exp(−η(b̃ − γ)): too many updates below C, and C shrinks (Andrew et al. 2021)."""
        below = np.array([self._below])
        stream = secrets.noise(Purpose.CLIPPING_NOISE, [below])
        noised = float((below + stream.normal(1, std=count_noise))[0])
        share = noised / self.expected_cohort + 0.5
        self.clip_norm *= math.exp(-self.clip_lr * (share - self.quantile))


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
