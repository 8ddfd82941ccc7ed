"""Who takes part in a round. The sampler object is the only one who decides it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from dp_fedmed.config import FederationConfig, SamplerName
from dp_fedmed.randomness import stream


class Sampler(Protocol):
    """Chooses the clients of a round, by their stable names."""

    def cohort(self, server_round: int, names: Sequence[str]) -> list[str]:
        """The names that take part, in name order."""


class AllSampler:
    """Everyone, every round."""

    def cohort(self, server_round: int, names: Sequence[str]) -> list[str]:
        """All names."""
        return sorted(names)


class FixedSampler:
    """The same number of clients every round, drawn without replacement.

    >>> len(FixedSampler(rate=0.5, seed=0).cohort(1, ["a", "b", "c", "d"]))
    2
    """

    def __init__(self, *, rate: float, seed: int) -> None:
        self.rate, self.seed = rate, seed

    def cohort(self, server_round: int, names: Sequence[str]) -> list[str]:
        """A seeded draw of round(rate · N) names, at least one."""
        size = max(1, round(self.rate * len(names)))
        rng = stream(self.seed, "cohort", server_round)
        ordered = sorted(names)
        return [ordered[i] for i in sorted(rng.choice(len(ordered), size, replace=False))]


class PoissonSampler:
    """Each client by its own coin; a cohort may be empty."""

    def __init__(self, *, rate: float, seed: int) -> None:
        self.rate, self.seed = rate, seed

    def cohort(self, server_round: int, names: Sequence[str]) -> list[str]:
        """Every name with probability `rate`, independently."""
        coins = stream(self.seed, "cohort", server_round).random(len(names))
        return [name for name, coin in zip(sorted(names), coins, strict=True) if coin < self.rate]


def make_sampler(config: FederationConfig, *, seed: int) -> Sampler:
    """The sampler that the configuration names."""
    if config.sampler is SamplerName.all or math.isclose(config.sample_rate, 1.0):
        return AllSampler()
    if config.sampler is SamplerName.poisson:
        return PoissonSampler(rate=config.sample_rate, seed=seed)
    return FixedSampler(rate=config.sample_rate, seed=seed)
