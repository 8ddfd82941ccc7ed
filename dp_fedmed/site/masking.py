"""One client's side of secure aggregation, from message to message and through crashes.

The guarantee kept here: what a client must not forget of an attempt is on disk before each answer
leaves, and an answer that was unmasked once is never masked in another attempt: two sums of the
same answers over different clients would show a single one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from dp_fedmed.errors import MaskingRefused
from dp_fedmed.federation.secure_aggregation import (
    Advertisement,
    ClientState,
    Delivery,
    MaskedSum,
    Revealed,
    Roster,
    SealedShares,
    SecureClient,
    Terms,
    UnmaskRequest,
)
from dp_fedmed.privacy.files import write_file
from dp_fedmed.privacy.ledger import Ledger
from dp_fedmed.privacy.streams.keys import KEY_BYTES, MacKey

REVEAL = "REVEAL"
#: Beside a client's name, what the ledger of unmasked rounds is called.
UNMASKED = ".unmasked"
SCHEMA = 1
Said = TypeVar("Said")


class Masking:
    """What a client remembers of the attempt that it is in, and of the rounds it has unmasked.

    Args:
        folder: the client's own; made if needed.
        name: the client's.
        key: chains the list of unmasked rounds.
        durable: wait for the disk; a simulated client leaves that to the run.
    """

    def __init__(self, folder: Path, name: str, key: MacKey, *, durable: bool) -> None:
        folder.mkdir(parents=True, mode=0o700, exist_ok=True)
        self.name, self._durable = name, durable
        self._file = folder / f"{name}.masking"
        self._revealed = Ledger(folder / f"{name}{UNMASKED}.jsonl", key, durable=durable)

    def advertise(self, terms: Terms) -> Advertisement:
        """Public keys for an attempt; what an earlier attempt needed is forgotten for good."""
        known = self._load(terms)
        key, state, about = known or (os.urandom(KEY_BYTES), None, "")
        client = SecureClient(key, self.name, terms, state)
        self._save(key, terms, client.state, about)
        return client.advertise()

    def share(self, terms: Terms, roster: Roster) -> SealedShares:
        """Shares of this client's secrets for its neighbours."""
        return self._answer(terms, lambda client: client.share(roster))

    def mask(
        self, terms: Terms, delivery: Delivery, about: str, values: NDArray[np.int64]
    ) -> MaskedSum:
        """A contribution under masks.

        Args:
            terms: of the attempt.
            delivery: the shares of this client's neighbours.
            about: names the round, the model and the settings that the contribution is made from.
            values: the contribution.

        Raises:
            MaskingRefused: if it was unmasked in another attempt, or the protocol does not allow
                it.
        """
        self._revealed.refresh()
        attempt = terms.digest().hex()
        for record in self._revealed.records:
            if record.body["about"] == about and record.body["attempt"] != attempt:
                raise MaskingRefused(
                    f"{self.name!r} has unmasked its answer to round {terms.server_round} before, "
                    "and does not mask it again: continue as a new phase with new_phase=true"
                )
        return self._answer(terms, lambda client: client.mask(delivery, values), about)

    def reveal(self, terms: Terms, request: UnmaskRequest) -> Revealed:
        """What unmasks the sum of an attempt, written down before it is sent."""
        _, _, about = self._known(terms)
        said = self._answer(terms, lambda client: client.reveal(request))
        body = {"about": about, "attempt": terms.digest().hex(), "round": terms.server_round}
        self._revealed.refresh()
        if not any(record.body == body for record in self._revealed.records):
            self._revealed.append(REVEAL, body)
        return said

    def clients(self, terms: Terms) -> int:
        """How many are in the attempt."""
        return len(self._known(terms)[1].roster)

    def _answer(
        self, terms: Terms, work: Callable[[SecureClient], Said], about: str | None = None
    ) -> Said:
        key, state, known = self._known(terms)
        client = SecureClient(key, self.name, terms, state)
        said = work(client)
        self._save(key, terms, client.state, known if about is None else about)
        return said

    def _known(self, terms: Terms) -> tuple[bytes, ClientState, str]:
        known = self._load(terms)
        if known is None:
            raise MaskingRefused(f"{self.name!r} is in no such attempt at secure aggregation")
        return known

    def _load(self, terms: Terms) -> tuple[bytes, ClientState, str] | None:
        """Key, state and round of this very attempt, if the client is in it."""
        try:
            kept = json.loads(self._file.read_bytes())
            if kept["attempt"] != terms.digest().hex():
                return None
            state = ClientState.from_json(kept["state"])
            return bytes.fromhex(kept["key"]), state, str(kept["about"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None  # an attempt that is forgotten cannot go on; another can

    def _save(self, key: bytes, terms: Terms, state: ClientState, about: str) -> None:
        kept = {
            "schema": SCHEMA,
            "attempt": terms.digest().hex(),
            "key": key.hex(),
            "about": about,
            "state": state.to_json(),
        }
        content = json.dumps(kept).encode()
        write_file(self._file, content, mode=0o600, durable=self._durable)
