"""Noise that clients add to their own integers: all that one needs, or a share of a sum's noise.

The guarantee kept here: the shares of `shares` honest clients add up to noise of standard deviation
`std` or more, whoever else takes part. A sum of K rounded normals of s grid steps each is a rounded
N(0, Ks²) to which K − 1 independent roundings were added, so post-processing of the Gaussian
mechanism, up to K·exp(−2π²s²(1 − 1/K)) (Poisson summation; tests/privacy/mechanisms/
test_rounded_noise.py), which at s ≥ 2¹⁰ is nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from dp_fedmed.privacy.mechanisms.base import Arrays, State
from dp_fedmed.privacy.mechanisms.client_updates import ClientUpdates
from dp_fedmed.privacy.mechanisms.private_sum import Grid
from dp_fedmed.privacy.streams.noise import NoiseStream, Purpose
from dp_fedmed.privacy.streams.rounds import RoundStreams

#: Grid steps that the standard deviation of one share spans at least.
LEAST_SHARE_STEPS: Final = 2.0**10


@dataclass(frozen=True, kw_only=True)
class OwnNoise:
    """The noise of one client.

    Attributes:
        grid: of the sum that the client's integers go into.
        std: standard deviation of the noise that the sum must have.
        shares: honest clients that draw it together; 1 where each client draws all of it.

    Raises:
        ValueError: if a share is too little for the grid.

    Example:
        >>> OwnNoise(grid=Grid(2.0**-30), std=3.0, shares=9).own_std
        1.0
    """

    grid: Grid
    std: float
    shares: int = 1

    def __post_init__(self) -> None:
        if self.shares < 1 or self.own_std < LEAST_SHARE_STEPS * self.grid.step:
            raise ValueError(
                f"noise of standard deviation {self.std:g} cannot be drawn by {self.shares} clients"
                " on the grid of the private sum: use more noise, or fewer clients"
            )

    @property
    def own_std(self) -> float:
        """Standard deviation of what this client draws."""
        return self.std / math.sqrt(self.shares)

    def add(self, exact: Arrays, stream: NoiseStream) -> State:
        """A client's integers with its noise, taken as one vector.

        Args:
            exact: bounded, in steps of the grid.
            stream: the secret stream that hides them.
        """
        size = sum(part.size for part in exact.values())
        noise = self.grid.noise(stream, size, std=self.own_std)
        noised: State = {}
        start = 0
        for name, part in exact.items():
            noised[name] = part + noise[start : start + part.size].reshape(part.shape)
            start += part.size
        return noised


@dataclass(frozen=True, kw_only=True)
class OwnAnswer:
    """What a client does to its whole answer before it leaves: bounds it, and adds its noise.

    Attributes:
        noise: the client's.
        updates: clips and charges for whole clients; None where records alone are protected.
        is_sum: whether the answer is a sum over records that is bounded as it is.
    """

    noise: OwnNoise
    updates: ClientUpdates | None = None
    is_sum: bool = False

    def order(self) -> dict[str, float | str]:
        """What makes it another release: the noise, and who else draws it."""
        own: dict[str, float | str] = {"noise_std": self.noise.std, "shares": self.noise.shares}
        return own if self.updates is None else {**self.updates.order(), **own}

    def release(self, answer: Arrays, streams: RoundStreams) -> State:
        """The answer in steps of the grid, bounded and noised."""
        exact, purpose = answer, Purpose.RECORD_NOISE
        if self.updates is not None and not self.is_sum:
            exact, purpose = self.updates.clipped(answer)[0], Purpose.CLIENT_NOISE
        return self.noise.add(exact, streams.noise(purpose, list(exact.values())))
