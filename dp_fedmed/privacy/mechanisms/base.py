"""The one object that protects a release: it bounds, adds noise, and states what that costs.

Only `gaussian_std` multiplies σ by a sensitivity. Whoever draws the noise, a mechanism adds exactly
the noise that its `cost` accounts for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from dp_fedmed.privacy.accounting.events import Adjacency, PrivacyEvent
from dp_fedmed.privacy.streams.rounds import RoundStreams

Arrays = Mapping[str, NDArray[Any]]
State = dict[str, NDArray[Any]]
NoisedBy = Literal["client", "shares", "server"]


class Mechanism(Protocol):
    """What protects one unit's contribution to what is released.

    Attributes:
        noised_by: who draws the noise.
        hides_cohorts: whether the cost rests on nobody knowing who took part.
    """

    @property
    def noised_by(self) -> NoisedBy:
        """Who draws the noise."""

    @property
    def hides_cohorts(self) -> bool:
        """Whether the cost rests on nobody knowing who took part."""

    def cost(self, rounds: int) -> Sequence[PrivacyEvent]:
        """What so many rounds cost; need not be so many times one event."""

    def order(self) -> Mapping[str, float | str]:
        """What makes a release another release: streams and messages carry it."""

    def bound(self, contribution: Any, /) -> Any:
        """A contribution as it is added up: one unit moves the sum by at most the sensitivity."""

    def release(self, total: Any, streams: Any, /) -> Any:
        """The noised sum over a public constant; an empty sum too is noised."""

    def state(self) -> dict[str, float]:
        """What changes from round to round, such as C."""

    def restore(self, state: Mapping[str, float]) -> None:
        """Continue from what `state` gave."""


class ServerMechanism(Mechanism, Protocol):
    """A mechanism whose sum is over clients; the server adds the noise unless they have."""

    @property
    def std(self) -> float:
        """Standard deviation of the noise that the sum needs."""

    @property
    def expected_cohort(self) -> float:
        """The constant that a sum is divided by, whoever took part."""

    def answer_like(self, like: Arrays) -> Arrays:
        """What a client answers where the model's step would take answers like these."""

    def empty(self, like: Arrays) -> State:
        """The sum of no contributions to answers of these shapes."""

    def bound(self, contribution: Arrays, /, client: str = "") -> State:
        """One client's answer as it is added up."""

    def release(self, total: State, streams: RoundStreams, /) -> State:
        """The noised average."""


class RecordMechanism(Mechanism, Protocol):
    """A mechanism that protects one client's records, as that client pays for it."""

    @property
    def noise_multiplier(self) -> float:
        """σ of each step."""

    @property
    def sample_rate(self) -> float:
        """Share of the records in each step: q."""

    @property
    def steps(self) -> int:
        """Noised sums of a round."""

    @property
    def adjacency(self) -> Adjacency:
        """How neighbouring data sets differ in one record."""


class Stateless:
    """A mechanism that is the same in every round."""

    def state(self) -> dict[str, float]:
        """Nothing."""
        return {}

    def restore(self, state: Mapping[str, float]) -> None:
        """Nothing to restore."""


def gaussian_std(*, noise_multiplier: float, sensitivity: float) -> float:
    """Standard deviation of the noise that hides a unit: σ times how far it can move the sum.

    >>> gaussian_std(noise_multiplier=2.0, sensitivity=0.5)
    1.0
    """
    return noise_multiplier * sensitivity


def add(total: State, bounded: Arrays) -> None:
    """Add a bounded contribution to a sum, in place."""
    for name, value in bounded.items():
        total[name] += value


def exact_inputs(total: Arrays, streams: RoundStreams) -> str:
    """A keyed digest of all that is about to be noised, as a ledger may hold it."""
    return streams.inputs_digest(list(total.values()))


def zeros_like(like: Arrays) -> State:
    """An empty sum in integers.

    >>> zeros_like({"w": np.ones(2, np.float32)})
    {'w': array([0, 0])}
    """
    return {name: np.zeros(value.shape, np.int64) for name, value in like.items()}
