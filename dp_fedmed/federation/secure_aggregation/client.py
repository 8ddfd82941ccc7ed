"""One client's side of one attempt: it answers each message in one way only, or refuses.

Asked again, also after it was killed, it gives the same bytes. It never masks two inputs with the
same masks, and never reveals both secrets of a neighbour.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dp_fedmed.errors import MaskingRefused, NotUnmasked
from dp_fedmed.federation.secure_aggregation.client_state import ClientState
from dp_fedmed.federation.secure_aggregation.masks import add_mask
from dp_fedmed.federation.secure_aggregation.messages import (
    Advertisement,
    Delivery,
    MaskedSum,
    PublicKeys,
    Revealed,
    Roster,
    SealedShares,
    UnmaskRequest,
)
from dp_fedmed.federation.secure_aggregation.neighbours import Graph
from dp_fedmed.federation.secure_aggregation.primitives import SEED_BYTES, seal, split, unseal
from dp_fedmed.federation.secure_aggregation.secrets import (
    Secrets,
    pairwise_mask_key,
    sealing_key,
    self_mask_key,
)
from dp_fedmed.federation.secure_aggregation.terms import Terms


class SecureClient:
    """A client in one attempt.

    Args:
        key: 32 secret bytes of the client's; every attempt may have the same.
        name: of the client.
        terms: of the attempt.
        state: what it remembers of the attempt, if it took part in it before.

    The state changes with each answer. Whoever sends an answer stores the state first.
    """

    def __init__(
        self, key: bytes, name: str, terms: Terms, state: ClientState | None = None
    ) -> None:
        self._terms, self._name, self._attempt = terms, name, terms.digest()
        self._state = state or ClientState(attempt=self._attempt, name=name)
        if (self._state.attempt, self._state.name) != (self._attempt, name):
            raise MaskingRefused(
                f"what {name!r} remembers is of another attempt at secure aggregation"
            )
        self._secrets = Secrets(key, name, self._attempt)
        self._keys: dict[str, PublicKeys] = {}
        self._graph: Graph | None = None
        if self._state.roster:
            self._take(Roster(self._attempt, self._state.roster))

    @property
    def state(self) -> ClientState:
        """What the client must remember of the attempt."""
        return self._state

    def advertise(self) -> Advertisement:
        """The client's public keys."""
        return Advertisement(self._attempt, self._name, self._secrets.public.to_bytes())

    def share(self, roster: Roster) -> SealedShares:
        """Shares of both secrets for the client's neighbours.

        Raises:
            MaskingRefused: for another roster than before, or one with wrong keys.
            NotUnmasked: for fewer clients than a sum needs.
        """
        roster.check_attempt(self._attempt)
        if self._state.roster and roster.keys != self._state.roster:
            raise self._refusal("was sent two different lists of public keys")
        if not self._state.sealed:
            self._take(roster)
            self._make_shares(roster)
        return SealedShares(self._attempt, self._name, roster.digest(), self._state.sealed)

    def mask(self, delivery: Delivery, values: NDArray[np.int64]) -> MaskedSum:
        """The client's contribution under its masks.

        Raises:
            MaskingRefused: for another input or other shares than before, a wrong length, or
                shares that others than the client's neighbours made.
            NotUnmasked: for too few neighbours that shared their secrets.
        """
        delivery.check_attempt(self._attempt)
        self._check_values(values)
        if not self._state.sealed:
            raise self._refusal("was asked for its contribution before it shared its secrets")
        if delivery.receiver != self._name:
            raise self._refusal("was sent shares that are for another client")
        if self._state.delivery not in (b"", delivery.digest()):
            raise self._refusal("was sent two different sets of shares")
        held = self._state.held if self._state.delivery else self._open(delivery)
        contribution = np.ascontiguousarray(values)
        masked = self._secrets.input_digest(contribution.data.cast("B"))
        if self._state.masked not in (b"", masked):
            raise self._refusal("has masked another contribution in this attempt already")
        self._state = replace(self._state, delivery=delivery.digest(), held=held, masked=masked)
        total = contribution.astype("<i8").view(np.uint64)
        self._add_masks(total)
        return MaskedSum(self._attempt, (self._name,), total)

    def reveal(self, request: UnmaskRequest) -> Revealed:
        """Shares that unmask the sum of the survivors, and nothing else.

        Raises:
            MaskingRefused: for other sets than before, or sets that no server in good order sends.
            NotUnmasked: for fewer survivors than a sum needs.
        """
        request.check_attempt(self._attempt)
        if not self._state.masked:
            raise self._refusal("was asked to unmask a sum that it is no part of")
        if self._state.request not in (b"", request.digest()):
            raise self._refusal("was asked to unmask two different sums in one attempt")
        self._check_request(set(request.survivors), set(request.dropped), request)
        self._state = replace(self._state, request=request.digest())
        held = self._state.held
        return Revealed(
            attempt=self._attempt,
            sender=self._name,
            self_shares={self._name: self._state.own_share}
            | {name: held[name][:SEED_BYTES] for name in request.survivors if name in held},
            key_shares={name: held[name][SEED_BYTES:] for name in request.dropped if name in held},
        )

    def __repr__(self) -> str:
        return f"SecureClient({self._name!r}, {self._terms})"

    def _refusal(self, why: str) -> MaskingRefused:
        return MaskingRefused(f"{self._name!r} {why}")

    def _take(self, roster: Roster) -> None:
        """Work with the keys of a roster, once it is seen to be a sound one."""
        if roster.keys.get(self._name) != self._secrets.public.to_bytes():
            raise self._refusal("was sent a list of public keys without its own")
        self._keys = roster.public_keys()
        self._graph = Graph(
            self._keys,
            roster.digest(),
            minimum=self._terms.minimum,
            colluding=self._terms.colluding,
        )

    def _sound_graph(self) -> Graph:
        if self._graph is None:
            raise self._refusal("has not been sent the public keys of this attempt")
        return self._graph

    def _make_shares(self, roster: Roster) -> None:
        graph = self._sound_graph()
        holders = graph.holders(self._name)
        self_shares = split(self._secrets.self_seed, graph.threshold, len(holders))
        key_shares = split(self._secrets.masking_seed, graph.threshold, len(holders))
        made = dict(zip(holders, zip(self_shares, key_shares, strict=True), strict=True))
        own_share, _ = made.pop(self._name)
        sealed = {
            name: seal(self._sealing_key(self._name, name), b"".join(pair))
            for name, pair in made.items()
        }
        self._state = replace(
            self._state, roster=dict(roster.keys), sealed=sealed, own_share=own_share
        )

    def _sealing_key(self, sender: str, receiver: str) -> bytes:
        other = receiver if sender == self._name else sender
        public = self._keys[other].sealing
        return sealing_key(self._secrets.sealing, public, self._attempt, sender, receiver)

    def _open(self, delivery: Delivery) -> dict[str, bytes]:
        graph = self._sound_graph()
        strangers = delivery.sealed.keys() - set(graph.of(self._name))
        if strangers:
            raise self._refusal(f"was sent shares of {min(strangers)!r}, which is no neighbour")
        if len(delivery.sealed) + 1 < graph.threshold:
            raise NotUnmasked(
                f"{len(delivery.sealed)} neighbours of {self._name!r} shared their secrets, and "
                f"{graph.threshold - 1} are needed"
            )
        held = {}
        for name, sealed in delivery.sealed.items():
            content = unseal(self._sealing_key(name, self._name), sealed)
            if content is None or len(content) != 2 * SEED_BYTES:
                raise self._refusal(f"cannot open the shares of {name!r}: they or a key are forged")
            held[name] = content
        return held

    def _check_values(self, values: NDArray[Any]) -> None:
        if values.dtype != np.int64 or values.shape != (self._terms.length,):
            raise self._refusal(
                f"was to mask {self._terms.length} 64-bit integers, not {values.dtype} of shape "
                f"{values.shape}"
            )

    def _add_masks(self, total: NDArray[np.uint64]) -> None:
        own = self_mask_key(self._secrets.self_seed, self._attempt, self._name)
        add_mask(total, own, 1)
        for name in self._state.held:
            public = self._keys[name].masking
            pair = pairwise_mask_key(self._secrets.masking, public, self._attempt, self._name, name)
            add_mask(total, pair, 1 if self._name < name else -1)

    def _check_request(
        self, survivors: set[str], dropped: set[str], request: UnmaskRequest
    ) -> None:
        held = self._state.held.keys()
        if survivors & dropped or len(survivors) + len(dropped) != len(request.survivors) + len(
            request.dropped
        ):
            raise self._refusal("was asked for both secrets of one client, or for one twice")
        if self._name not in survivors:
            raise self._refusal("was asked to unmask a sum that it is no part of")
        if not survivors | dropped <= self._keys.keys():
            raise self._refusal("was asked to unmask clients that the list of keys does not have")
        neighbours = set(self._sound_graph().of(self._name)) & (survivors | dropped)
        if neighbours != held:
            raise self._refusal("was asked to unmask other neighbours than those that shared")
        if len(survivors) < self._terms.minimum:
            raise NotUnmasked(
                f"{len(survivors)} contributions are in the sum, and {self._terms.minimum} are "
                "needed to unmask it"
            )
        if len(survivors & {self._name, *held}) < self._sound_graph().threshold:
            raise NotUnmasked(f"too few neighbours of {self._name!r} are left to unmask the sum")
