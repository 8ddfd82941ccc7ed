"""One attempt at adding up a round under masks, led by the server over Flower's messages.

The server asks for keys, passes shares on, adds up masked answers and asks for what unmasks their
sum. What it sends before the last step may be sent anew in another attempt, with other masks. What
it needs for the last step is kept before it asks, and only ever asked for again as it was.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol, TypeVar

import numpy as np
from flwr.app import ConfigRecord, RecordDict
from numpy.typing import NDArray

from dp_fedmed.crash_points import crash_point
from dp_fedmed.errors import MaskingRefused
from dp_fedmed.federation.secure_aggregation.masks import Vector
from dp_fedmed.federation.secure_aggregation.messages import (
    Advertisement,
    MaskedSum,
    Revealed,
    SealedShares,
)
from dp_fedmed.federation.secure_aggregation.plain import Plain
from dp_fedmed.federation.secure_aggregation.server import SecureServer, ServerState
from dp_fedmed.federation.secure_aggregation.terms import Terms

logger = logging.getLogger(__name__)

#: Flower's message types of the three stages besides training.
KEYS, SHARES, UNMASK = "query.keys", "query.shares", "query.unmask"
#: Records of messages: what all of them name, and what the stage is about.
TERMS, MASKING = "terms", "masking"
#: The one array of a masked answer.
MASKED: Final = "masked"

Facts = dict[str, Any]
#: Sends each client its records by name, and gives the answers of those that have one.
Ask = Callable[[str, Mapping[str, RecordDict]], Iterable[tuple[str, RecordDict]]]
Said = TypeVar("Said", Advertisement, SealedShares, Revealed)


class AttemptStore(Protocol):
    """Keeps what a round's sum is unmasked from, and the sum where nothing else keeps it."""

    def save(self, terms: Terms, state: ServerState, masked: Vector, facts: Facts) -> None:
        """Make it durable before anybody is asked to unmask."""

    def finish(self, total: NDArray[np.int64]) -> None:
        """Keep the sum."""


class Attempt:
    """The server's side of one attempt.

    Args:
        terms: of the attempt.
        ask: reaches the clients.
        store: outlasts the process.
    """

    def __init__(self, terms: Terms, ask: Ask, store: AttemptStore) -> None:
        self.terms, self._ask, self._store = terms, ask, store
        self.server = SecureServer(terms)
        self.facts: Facts = {}
        self.is_restored = False
        self._total: NDArray[np.int64] | None = None

    @classmethod
    def restored(
        cls,
        terms: Terms,
        ask: Ask,
        store: AttemptStore,
        *,
        kept: tuple[ServerState, Vector] | NDArray[np.int64],
        facts: Facts,
    ) -> Attempt:
        """An attempt that a crash came in the way of: its masked sum is there, or its sum."""
        attempt = cls(terms, ask, store)
        attempt.facts, attempt.is_restored = facts, True
        if isinstance(kept, tuple):
            attempt.server = SecureServer.restored(terms, *kept)
        else:
            attempt._total = kept
        return attempt

    def open(self, cohort: Iterable[str]) -> dict[str, RecordDict]:
        """Have clients agree on masks; for each that did, what goes with the model it is sent.

        Raises:
            NotUnmasked: if too few did.
        """
        crash_point("masking:keys")
        asked = {name: self._records() for name in cohort}
        self._take(KEYS, asked, Advertisement, self.server.take_keys)
        roster = self.server.roster()
        crash_point("masking:shares")
        asked = {name: self._records(roster) for name in roster.keys}
        self._take(SHARES, asked, SealedShares, self.server.take_shares)
        return {n: self._records(each) for n, each in self.server.deliveries().items()}

    def add(self, name: str, values: Vector) -> None:
        """Add a client's masked answer.

        Raises:
            MaskingRefused: if it does not belong here.
        """
        self.server.add(MaskedSum(self.terms.digest(), (name,), values))

    def total(self) -> NDArray[np.int64]:
        """The sum of all answers that were added.

        Raises:
            NotUnmasked: if too few clients answered, or helped to unmask.
        """
        if self._total is None:
            request = self.server.request()
            if not self.is_restored:
                state, masked = self.server.state()
                self._store.save(self.terms, state, masked, self.facts)
                crash_point("masking:kept")
            asked = {name: self._records(request) for name in request.survivors}
            self._take(UNMASK, asked, Revealed, self.server.take_revealed)
            crash_point("masking:revealed")
            self._total = self.server.total()
            self._store.finish(self._total)
        return self._total

    def _records(self, stage: Plain | None = None) -> RecordDict:
        records = RecordDict({TERMS: ConfigRecord(dict(self.terms.to_record()))})
        if stage is not None:
            records[MASKING] = ConfigRecord(dict(stage.to_record()))
        return records

    def _take(
        self,
        stage: str,
        asked: Mapping[str, RecordDict],
        kind: type[Said],
        take: Callable[[Said], None],
    ) -> None:
        """Take each client's answer; one that does not fit counts as dropped out."""
        for name, content in self._ask(stage, asked):
            try:
                said = kind.from_record(content.config_records.get(MASKING, {}))
                if said.sender != name:
                    raise MaskingRefused(f"{name!r} answered for another client")
                take(said)
            except MaskingRefused as error:
                logger.warning("round %d: %s", self.terms.server_round, error)
