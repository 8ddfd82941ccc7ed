"""Who takes part in a round. The sampler also makes the accounting event, so the two agree.

The generator is the caller's: from the run's secret key where a guarantee rests on hidden cohorts
(user and hybrid), elsewhere from the config's seed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from dp_fedmed.privacy.accounting.events import PrivacyEvent


class Sampler(ABC):
    """Chooses the clients of a round, by their stable names.

    Args:
        rate: the share of clients that a round asks, in (0, 1].
    """

    def __init__(self, *, rate: float) -> None:
        self.rate = rate

    @abstractmethod
    def cohort(self, names: Sequence[str], rng: np.random.Generator) -> list[str]:
        """The names that take part, in name order."""

    @abstractmethod
    def event(
        self, *, noise_multiplier: float, population: int, is_private: bool = True
    ) -> PrivacyEvent:
        """What one round costs a client, when the sum of clipped updates has noise σ·C."""

    def expected(self, population: int) -> float:
        """The constant that a sum of updates is divided by: q·N, whoever takes part."""
        return self.rate * population


class AllSampler(Sampler):
    """Everyone, every round."""

    def cohort(self, names: Sequence[str], rng: np.random.Generator) -> list[str]:
        """All names."""
        return sorted(names)

    def event(
        self, *, noise_multiplier: float, population: int, is_private: bool = True
    ) -> PrivacyEvent:
        """A Gaussian release of everyone's sum."""
        return PrivacyEvent.full(
            unit="client", noise_multiplier=noise_multiplier, is_private=is_private
        )


class FixedSampler(Sampler):
    """The same number of clients every round, drawn without replacement.

    >>> sampler = FixedSampler(rate=0.5)
    >>> len(sampler.cohort(["a", "b", "c", "d"], np.random.default_rng(0)))
    2
    """

    def cohort(self, names: Sequence[str], rng: np.random.Generator) -> list[str]:
        """A draw of round(rate · N) names, at least one."""
        ordered = sorted(names)
        chosen = rng.choice(len(ordered), self._size(len(ordered)), replace=False)
        return [ordered[i] for i in sorted(chosen)]

    def event(
        self, *, noise_multiplier: float, population: int, is_private: bool = True
    ) -> PrivacyEvent:
        """No amplification is claimed for a cohort of fixed size (zero-out adjacency)."""
        return PrivacyEvent.fixed_size(
            unit="client",
            noise_multiplier=noise_multiplier,
            cohort_size=self._size(population),
            population=population,
            adjacency="zero_out",
            is_private=is_private,
        )

    def expected(self, population: int) -> float:
        """The size of every cohort."""
        return float(self._size(population))

    def _size(self, population: int) -> int:
        return max(1, round(self.rate * population))


class PoissonSampler(Sampler):
    """Each client by its own coin; a cohort may be empty."""

    def cohort(self, names: Sequence[str], rng: np.random.Generator) -> list[str]:
        """Every name with probability `rate`, independently."""
        coins = rng.random(len(names))
        return [name for name, coin in zip(sorted(names), coins, strict=True) if coin < self.rate]

    def event(
        self, *, noise_multiplier: float, population: int, is_private: bool = True
    ) -> PrivacyEvent:
        """A Poisson-sampled Gaussian release."""
        return PrivacyEvent.poisson(
            unit="client",
            noise_multiplier=noise_multiplier,
            sample_rate=self.rate,
            is_private=is_private,
        )


SAMPLERS: dict[str, type[Sampler]] = {
    "all": AllSampler,
    "fixed": FixedSampler,
    "poisson": PoissonSampler,
}
