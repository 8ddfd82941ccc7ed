"""What the parties of an attempt send each other, in the order in which they do.

`Advertisement` → `Roster` → `SealedShares` → `Delivery` → `MaskedSum` → `UnmaskRequest` →
`Revealed`: a client's and the server's in turn. Each names its attempt by the digest of its terms.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dp_fedmed.errors import MaskingRefused
from dp_fedmed.federation.secure_aggregation.masks import Vector
from dp_fedmed.federation.secure_aggregation.plain import Plain, Record
from dp_fedmed.federation.secure_aggregation.primitives import KEY_BYTES


@dataclass(frozen=True)
class PublicKeys:
    """What everybody may know of a client's secrets.

    Attributes:
        sealing: the public key that shares are sealed for.
        masking: the public key of pairwise masks.
        commitment: says whether a seed is that of the client's self-mask.
    """

    sealing: bytes
    masking: bytes
    commitment: bytes

    def to_bytes(self) -> bytes:
        """As they are sent."""
        return self.sealing + self.masking + self.commitment

    def parts(self) -> set[bytes]:
        """Each of them, to find one that is used twice."""
        return {self.sealing, self.masking, self.commitment}

    @classmethod
    def from_bytes(cls, sent: bytes, name: str) -> PublicKeys:
        """What a client sent.

        Raises:
            MaskingRefused: for a wrong length, or one key for two purposes.
        """
        parts = [sent[at : at + KEY_BYTES] for at in range(0, 3 * KEY_BYTES, KEY_BYTES)]
        if len(sent) != 3 * KEY_BYTES or len(set(parts)) != 3:
            raise MaskingRefused(f"the public keys of {name!r} are not three different ones")
        return cls(*parts)


@dataclass(frozen=True)
class Message(Plain):
    """What belongs to one attempt.

    Attributes:
        attempt: the digest of its terms.
    """

    attempt: bytes

    def check_attempt(self, attempt: bytes) -> None:
        """Refuse what belongs to another attempt, round, run or other terms.

        Raises:
            MaskingRefused: naming the kind of message.
        """
        if self.attempt != attempt:
            raise MaskingRefused(
                f"this {type(self).__name__} belongs to another attempt at secure aggregation"
            )


@dataclass(frozen=True)
class Advertisement(Message):
    """A client's public keys."""

    sender: str
    keys: bytes


@dataclass(frozen=True)
class Roster(Message):
    """The public keys of all clients; its digest is the seed of the neighbours' graph."""

    keys: Mapping[str, bytes]

    def public_keys(self) -> dict[str, PublicKeys]:
        """The keys of every client.

        Raises:
            MaskingRefused: where two keys are the same, or one has a wrong length.
        """
        keys = {name: PublicKeys.from_bytes(sent, name) for name, sent in self.keys.items()}
        if len(set().union(*(each.parts() for each in keys.values()))) != 3 * len(keys):
            raise MaskingRefused("two clients of secure aggregation have the same public key")
        return keys


@dataclass(frozen=True)
class SealedShares(Message):
    """Shares of a client's two secrets, each sealed for the neighbour that it is for."""

    sender: str
    roster: bytes
    sealed: Mapping[str, bytes]


@dataclass(frozen=True)
class Delivery(Message):
    """The sealed shares that a client's neighbours made for it."""

    receiver: str
    sealed: Mapping[str, bytes]


@dataclass(frozen=True, eq=False)
class MaskedSum:
    """The masked contributions of one client, or of several that were added up on the way.

    Attributes:
        attempt: the digest of its terms.
        names: of the clients.
        values: their sum modulo 2⁶⁴.
    """

    attempt: bytes
    names: tuple[str, ...]
    values: Vector

    def header(self) -> Record:
        """As it is sent, without the values, which are an array."""
        return _MaskedHeader(self.attempt, self.names).to_record()

    @classmethod
    def from_parts(cls, header: Mapping[str, Any], values: Vector) -> MaskedSum:
        """What was sent.

        Raises:
            MaskingRefused: for a header that cannot be read, or values of another kind.
        """
        read = _MaskedHeader.from_record(header)
        if values.dtype != np.uint64 or values.ndim != 1:
            raise MaskingRefused("a masked contribution is one row of unsigned 64-bit integers")
        return cls(read.attempt, read.names, values)


@dataclass(frozen=True)
class _MaskedHeader(Message):
    names: tuple[str, ...]


def add_up(contributions: Iterable[MaskedSum]) -> MaskedSum:
    """One sum of several masked contributions of an attempt, with memory for one.

    Raises:
        MaskingRefused: where they do not fit each other, or a client is in two of them.
    """
    names: list[str] = []
    first: MaskedSum | None = None
    for masked in contributions:
        names += masked.names
        if first is None:
            first, total = masked, masked.values.copy()
        elif masked.attempt != first.attempt or masked.values.shape != total.shape:
            raise MaskingRefused("masked contributions of different attempts cannot be added up")
        else:
            total += masked.values
    if first is None or len(set(names)) != len(names):
        raise MaskingRefused("a sum of masked contributions needs each client once")
    return MaskedSum(first.attempt, tuple(names), total)


@dataclass(frozen=True)
class UnmaskRequest(Message):
    """Whose contributions are in the sum, and who shared secrets but sent no contribution."""

    survivors: tuple[str, ...]
    dropped: tuple[str, ...]


@dataclass(frozen=True)
class Revealed(Message):
    """A survivor's shares: of survivors' self-masks, and of dropped clients' masking keys."""

    sender: str
    self_shares: Mapping[str, bytes]
    key_shares: Mapping[str, bytes]
