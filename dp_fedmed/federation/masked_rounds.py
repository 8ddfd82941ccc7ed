"""Secure aggregation in a strategy's rounds: the server learns the sum of the answers, no more."""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from flwr.app import RecordDict
from numpy.typing import NDArray

from dp_fedmed.errors import MaskingRefused, NotUnmasked, TooFewClients
from dp_fedmed.federation.arrays import State
from dp_fedmed.federation.secure_aggregation.attempt import (
    MASKED,
    Ask,
    Attempt,
    AttemptStore,
    Facts,
)
from dp_fedmed.federation.secure_aggregation.masks import Vector
from dp_fedmed.federation.secure_aggregation.server import ServerState
from dp_fedmed.federation.secure_aggregation.terms import Terms

logger = logging.getLogger(__name__)

Arrays = Mapping[str, np.ndarray[Any, Any]]


@dataclass(frozen=True, kw_only=True)
class KeptAttempt:
    """What is left of an attempt that was about to be unmasked, or was."""

    terms: Terms
    kept: tuple[ServerState, Vector] | NDArray[np.int64]
    facts: Facts


class RoundAttempts(AttemptStore, Protocol):
    """Keeps the attempts of a run's rounds."""

    def begin(self, server_round: int, model: State) -> KeptAttempt | None:
        """Keep what follows for this round with this model; what is left of it, if anything."""


class MaskedRounds:
    """Leads one attempt per round.

    Args:
        minimum: answers that a sum must have.
        colluding: clients that may tell the server all that they know.
        run: names the run and its phase.
        store: outlasts the process.
    """

    def __init__(self, *, minimum: int, colluding: int, run: str, store: RoundAttempts) -> None:
        self.minimum, self.colluding, self.run = minimum, colluding, run
        self._store = store
        self._attempt: Attempt | None = None

    def open(
        self, server_round: int, model: State, cohort: Iterable[str], like: Arrays, ask: Ask
    ) -> dict[str, RecordDict]:
        """Have clients agree on masks; what goes to each with its model.

        Nobody is sent anything where the round's sum was unmasked, or about to be, before a crash.

        Args:
            server_round: the round.
            model: that clients will be sent.
            cohort: whom to ask.
            like: the shapes of an answer.
            ask: reaches the clients.

        Raises:
            TooFewClients: if too few agree.
        """
        length = sum(math.prod(value.shape) for value in like.values())
        left = self._store.begin(server_round, model)
        if left is not None:
            self._attempt = Attempt.restored(
                left.terms, ask, self._store, kept=left.kept, facts=left.facts
            )
            return {}
        terms = Terms(
            run=self.run,
            server_round=server_round,
            attempt=secrets.randbits(62),  # so that no two are the same, whatever a crash forgot
            length=length,
            minimum=self.minimum,
            colluding=self.colluding,
        )
        self._attempt = Attempt(terms, ask, self._store)
        with _lost_round(server_round):
            return self._attempt.open(cohort)

    def total(self, like: Arrays, answers: Iterable[tuple[str, State, int]]) -> tuple[State, Facts]:
        """The sum of the masked answers; and how many there are, of how many records.

        Raises:
            TooFewClients: if too few answered, or helped to unmask.
        """
        attempt = self._attempt
        if attempt is None:
            raise ValueError("a round begins with `open`")
        if not attempt.is_restored:
            attempt.facts = {"clients": 0, "examples": 0}
            for name, answer, examples in answers:
                try:
                    attempt.add(name, answer[MASKED])
                except MaskingRefused as error:
                    logger.warning("round %d: %s", attempt.terms.server_round, error)
                    continue
                attempt.facts["clients"] += 1
                attempt.facts["examples"] += examples
        with _lost_round(attempt.terms.server_round):
            return unflattened(attempt.total(), like), attempt.facts

    def answer_like(self, like: Arrays) -> Arrays:
        """What a masked answer looks like, whatever it masks."""
        return {MASKED: np.empty(sum(value.size for value in like.values()), np.uint64)}


def flattened(arrays: Arrays) -> NDArray[np.int64]:
    """Arrays of integers as one vector, in their order.

    >>> flattened({"a": np.array([[1], [2]]), "b": np.array([3])})
    array([1, 2, 3])
    """
    return np.concatenate([np.asarray(value, np.int64).reshape(-1) for value in arrays.values()])


def unflattened(vector: NDArray[np.int64], like: Arrays) -> State:
    """The arrays that `flattened` put into a vector."""
    found: State = {}
    start = 0
    for name, value in like.items():
        found[name] = vector[start : start + value.size].reshape(value.shape)
        start += value.size
    return found


@contextmanager
def _lost_round(server_round: int) -> Iterator[None]:
    try:
        yield
    except NotUnmasked as error:
        raise TooFewClients(
            f"round {server_round}: {error} (federation.max_dropouts); nothing of it was released, "
            f"and the model is the one of round {server_round - 1}. Resume the run when the "
            "clients are back: a round that was charged is not charged again"
        ) from error
