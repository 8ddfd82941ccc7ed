"""The server's side of one attempt: it adds up masked contributions and unmasks their sum alone.

It has memory for one vector: contributions are added as they arrive, and their masks are taken
away from the sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from dp_fedmed.errors import MaskingRefused, NotUnmasked
from dp_fedmed.federation.secure_aggregation.masks import Vector, add_mask
from dp_fedmed.federation.secure_aggregation.messages import (
    Advertisement,
    Delivery,
    MaskedSum,
    Message,
    PublicKeys,
    Revealed,
    Roster,
    SealedShares,
    UnmaskRequest,
)
from dp_fedmed.federation.secure_aggregation.neighbours import Graph
from dp_fedmed.federation.secure_aggregation.plain import Plain
from dp_fedmed.federation.secure_aggregation.primitives import SEED_BYTES, KeyPair, rebuild
from dp_fedmed.federation.secure_aggregation.secrets import (
    commitment,
    masking_pair,
    pairwise_mask_key,
    self_mask_key,
)
from dp_fedmed.federation.secure_aggregation.terms import Terms


class Stage(IntEnum):
    """What the server waits for."""

    keys = 0
    shares = 1
    contributions = 2
    unmasking = 3
    over = 4


@dataclass(frozen=True, kw_only=True)
class ServerState(Plain):
    """What the server must keep of an attempt while it is unmasked, beside the masked sum.

    Attributes:
        attempt: the digest of its terms.
        keys: the public keys of all clients.
        shared: who shared its secrets.
        added: whose contributions are in the sum.
    """

    attempt: bytes
    keys: Mapping[str, bytes]
    shared: tuple[str, ...]
    added: tuple[str, ...]


class SecureServer:
    """The server in one attempt.

    A stage takes messages one by one, and ends with what is sent to the clients next: `roster`,
    `deliveries`, `request`, `total`. Where too few have answered, ending it raises `NotUnmasked`
    and the stage stays open.
    """

    def __init__(self, terms: Terms) -> None:
        self._terms, self._attempt = terms, terms.digest()
        self._stage = Stage.keys
        self._advertised: dict[str, bytes] = {}
        self._taken: set[bytes] = set()
        self._keys: dict[str, PublicKeys] = {}
        self._roster: Roster | None = None
        self._graph = Graph((), b"", minimum=0, colluding=0)
        self._sealed: dict[str, Mapping[str, bytes]] = {}
        self._added: set[str] = set()
        self._sum: Vector = np.zeros(terms.length, np.uint64)
        self._revealed: dict[str, Revealed] = {}

    @classmethod
    def restored(cls, terms: Terms, state: ServerState, masked: Vector) -> SecureServer:
        """The server as it was when it asked for the sum to be unmasked.

        Raises:
            MaskingRefused: if the state is of another attempt.
        """
        server = cls(terms)
        if state.attempt != server._attempt or masked.shape != server._sum.shape:
            raise MaskingRefused("what was kept of an attempt does not fit its terms")
        server._advertised = dict(state.keys)
        server.roster()
        server._sealed = {name: {} for name in state.shared}
        server._added, server._sum = set(state.added), masked.astype(np.uint64)
        server._stage = Stage.unmasking
        return server

    def state(self) -> tuple[ServerState, Vector]:
        """What `restored` needs, once the server has asked for the sum to be unmasked."""
        self._reached(Stage.unmasking)
        kept = ServerState(
            attempt=self._attempt,
            keys=dict(self._advertised),
            shared=tuple(sorted(self._sealed)),
            added=tuple(sorted(self._added)),
        )
        return kept, self._sum

    @property
    def stage(self) -> Stage:
        """What the server waits for."""
        return self._stage

    @property
    def added(self) -> frozenset[str]:
        """Whose contributions are in the sum."""
        return frozenset(self._added)

    def take_keys(self, advertisement: Advertisement) -> None:
        """Take a client's public keys; the same ones may come again.

        Raises:
            MaskingRefused: for keys that are not usable, or differ from those sent before.
        """
        self._check(advertisement, Stage.keys)
        name, keys = advertisement.sender, advertisement.keys
        if self._advertised.get(name, keys) != keys:
            raise MaskingRefused(f"{name!r} advertised two different sets of public keys")
        if name not in self._advertised:
            parts = PublicKeys.from_bytes(keys, name).parts()
            if parts & self._taken:
                raise MaskingRefused(f"{name!r} advertised a public key of another client")
            self._taken |= parts
            self._advertised[name] = keys

    def roster(self) -> Roster:
        """The public keys of all, for each client that advertised its own."""
        if self._roster is None:
            self._enough(len(self._advertised), "advertised keys")
            roster = Roster(self._attempt, dict(self._advertised))
            self._keys = roster.public_keys()
            self._graph = Graph(
                self._keys,
                roster.digest(),
                minimum=self._terms.minimum,
                colluding=self._terms.colluding,
            )
            self._roster, self._stage = roster, Stage.shares
        return self._roster

    def take_shares(self, shares: SealedShares) -> None:
        """Take a client's sealed shares, which the server cannot open.

        Raises:
            MaskingRefused: for a stranger, another roster, or other receivers than its neighbours.
        """
        self._check(shares, Stage.shares)
        name = shares.sender
        if name not in self._keys or shares.roster != self.roster().digest():
            raise MaskingRefused(f"the shares of {name!r} are for another list of public keys")
        if shares.sealed.keys() != set(self._graph.of(name)):
            raise MaskingRefused(f"the shares of {name!r} are not for all of its neighbours")
        if self._sealed.get(name, shares.sealed) != shares.sealed:
            raise MaskingRefused(f"{name!r} sent two different sets of shares")
        self._sealed[name] = shares.sealed

    def deliveries(self) -> dict[str, Delivery]:
        """For each client that shared its secrets, what its neighbours sealed for it."""
        self._reached(Stage.shares)
        self._enough(len(self._sealed), "shared their secrets")
        self._stage = max(self._stage, Stage.contributions)
        return {
            name: Delivery(
                self._attempt,
                name,
                {
                    other: self._sealed[other][name]
                    for other in self._graph.of(name)
                    if other in self._sealed
                },
            )
            for name in sorted(self._sealed)
        }

    def add(self, masked: MaskedSum) -> None:
        """Add masked contributions to the sum, each client's once.

        Raises:
            MaskingRefused: for a client that is in the sum already or did not share its secrets,
                another attempt, or values of another kind or length.
        """
        if masked.attempt != self._attempt or self._stage != Stage.contributions:
            raise MaskingRefused("a masked contribution belongs to another attempt or stage")
        names = set(masked.names)
        if not names or len(names) != len(masked.names) or names & self._added:
            raise MaskingRefused("a client's masked contribution came twice")
        if not names <= self._sealed.keys():
            raise MaskingRefused("a masked contribution is of a client that shared no secrets")
        if masked.values.dtype != np.uint64 or masked.values.shape != self._sum.shape:
            raise MaskingRefused(
                f"a masked contribution has {masked.values.dtype} of shape {masked.values.shape}, "
                f"not {self._terms.length} unsigned 64-bit integers"
            )
        self._sum += masked.values
        self._added |= names

    def request(self) -> UnmaskRequest:
        """What each survivor is asked; no contribution is taken from here on."""
        self._reached(Stage.contributions)
        self._enough(len(self._added), "sent contributions")
        self._stage = max(self._stage, Stage.unmasking)
        dropped = self._sealed.keys() - self._added
        return UnmaskRequest(self._attempt, tuple(sorted(self._added)), tuple(sorted(dropped)))

    def take_revealed(self, revealed: Revealed) -> None:
        """Take a survivor's shares.

        Raises:
            MaskingRefused: for other shares than those that it was asked for.
        """
        self._check(revealed, Stage.unmasking)
        name = revealed.sender
        if name not in self._added:
            raise MaskingRefused(f"{name!r} is no survivor and revealed shares")
        holds = set(self._graph.holders(name))
        expected = holds & self._added, holds & (self._sealed.keys() - self._added)
        if (set(revealed.self_shares), set(revealed.key_shares)) != expected:
            raise MaskingRefused(f"{name!r} revealed other shares than it was asked for")
        shares = (*revealed.self_shares.values(), *revealed.key_shares.values())
        if any(len(share) != SEED_BYTES for share in shares):
            raise MaskingRefused(f"{name!r} revealed a share of a wrong length")
        if self._revealed.get(name, revealed) != revealed:
            raise MaskingRefused(f"{name!r} revealed two different sets of shares")
        self._revealed[name] = revealed

    def total(self) -> NDArray[np.int64]:
        """The sum of the survivors' contributions.

        Raises:
            NotUnmasked: for too few shares; with more of them it may be asked for again.
        """
        self._reached(Stage.unmasking)
        if self._stage != Stage.over:
            seeds = {name: self._self_seed(name) for name in sorted(self._added)}
            dropped = sorted(self._sealed.keys() - self._added)
            pairs = {name: self._masking_pair(name) for name in dropped}
            self._unmask(seeds, pairs)
            self._stage = Stage.over
        return self._sum.view(np.int64).copy()

    def _unmask(self, seeds: Mapping[str, bytes], pairs: Mapping[str, KeyPair]) -> None:
        for name, seed in seeds.items():
            add_mask(self._sum, self_mask_key(seed, self._attempt, name), -1)
        for gone, pair in pairs.items():
            for name in self._graph.of(gone):
                if name in self._added:
                    public = self._keys[name].masking
                    key = pairwise_mask_key(pair, public, self._attempt, gone, name)
                    add_mask(self._sum, key, -1 if name < gone else 1)

    def _self_seed(self, name: str) -> bytes:
        shares = {by: sent.self_shares[name] for by, sent in self._holding(name)}
        seed = self._rebuilt(name, shares)
        if commitment(seed, self._attempt, name) != self._keys[name].commitment:
            raise self._wrong(name)
        return seed

    def _masking_pair(self, name: str) -> KeyPair:
        shares = {by: sent.key_shares[name] for by, sent in self._holding(name)}
        pair = masking_pair(self._rebuilt(name, shares), self._attempt, name)
        if pair.public != self._keys[name].masking:
            raise self._wrong(name)
        return pair

    def _holding(self, name: str) -> list[tuple[str, Revealed]]:
        holders = self._graph.holders(name)
        return [(by, self._revealed[by]) for by in holders if by in self._revealed]

    def _rebuilt(self, name: str, shares: Mapping[str, bytes]) -> bytes:
        threshold = self._graph.threshold
        if len(shares) < threshold:
            raise NotUnmasked(
                f"{len(shares)} clients revealed their shares of a secret of {name!r}, and "
                f"{threshold} are needed to unmask the sum"
            )
        holders = self._graph.holders(name)
        chosen = sorted(shares)[:threshold]
        return rebuild({holders.index(by) + 1: shares[by] for by in chosen})

    def _wrong(self, name: str) -> NotUnmasked:
        return NotUnmasked(f"the shares of a secret of {name!r} do not fit what it committed to")

    def _check(self, message: Message, stage: Stage) -> None:
        message.check_attempt(self._attempt)
        if self._stage != stage:
            kind = type(message).__name__
            raise MaskingRefused(f"{kind} came while the server waits for {self._stage.name}")

    def _reached(self, stage: Stage) -> None:
        if self._stage < stage:
            raise MaskingRefused(f"the server still waits for {self._stage.name}")

    def _enough(self, count: int, what: str) -> None:
        if count < self._terms.minimum:
            raise NotUnmasked(
                f"{count} clients {what}, and {self._terms.minimum} are needed to unmask a sum"
            )
