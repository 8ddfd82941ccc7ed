"""One party's secret streams within one round: same inputs, same bytes; others are independent."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dp_fedmed.privacy.streams.noise import NoiseKey, NoiseStream, Purpose, StreamId, public_digest

Arrays = list[NDArray[Any]]


@dataclass(frozen=True)
class RoundStreams:
    """The streams of the server, or of one client, in one round.

    Attributes:
        key: the party's own.
        run: separates runs.
        server_round: the round.
        digest: of the round's public inputs: `round_digest`.
        client: a client's name; None for the server.
        phase: the stretch of the run with the same settings.
    """

    key: NoiseKey
    run: str
    server_round: int
    digest: bytes
    client: str | None = None
    phase: int = 0

    def sampling(self, purpose: Purpose, step: int = 0) -> np.random.Generator:
        """A generator for cohorts or batches: it depends on public inputs only."""
        return self.selection(purpose, step).generator

    def selection(self, purpose: Purpose, step: int = 0) -> NoiseStream:
        """The stream behind `sampling`."""
        return self.key.stream(self._id(purpose, step, None))

    def noise(self, purpose: Purpose, exact: Arrays, step: int = 0) -> NoiseStream:
        """The stream that hides `exact`, the very sum that is about to be noised."""
        return self.key.stream(self._id(purpose, step, self.key.private_digest(exact)))

    def inputs_digest(self, exact: Arrays) -> str:
        """A keyed digest of a sum as a ledger may hold it.

        It is hashed once more, since streams depend on the digest as it is.
        """
        digest = self.key.private_digest(exact)
        return hashlib.sha256(b"dp_fedmed ledger inputs v1" + digest).hexdigest()

    def _id(self, purpose: Purpose, step: int, private: bytes | None) -> StreamId:
        return StreamId(
            run=self.run,
            phase=self.phase,
            purpose=purpose,
            round_num=self.server_round,
            public_digest=self.digest,
            client=self.client,
            step=step,
            private_digest=private,
        )


def round_digest(
    arrays: Arrays, settings: Mapping[str, str], order: Mapping[str, float | str]
) -> bytes:
    """The public inputs of a round: the model that was sent and the settings in force.

    Args:
        arrays: the model.
        settings: those that the arithmetic depends on.
        order: σ, C, q and the like as this round uses them. Without them, one sum released at
            two noise scales would have one noise vector, and the two would give the sum away.
    """
    return public_digest(arrays=arrays, config={"in force": dict(order), **settings})
