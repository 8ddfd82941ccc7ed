"""One client's secrets for one attempt, and the keys of masks and sealed shares.

A client's secrets follow from its own key and the attempt, so that a client that was killed makes
the same ones again. Client and server derive the keys of masks by the same functions.
"""

from __future__ import annotations

import hmac

from dp_fedmed.federation.secure_aggregation.messages import PublicKeys
from dp_fedmed.federation.secure_aggregation.primitives import (
    KEY_BYTES,
    SEED_BYTES,
    KeyPair,
    derive,
)


class Secrets:
    """What a client keeps to itself: two key pairs and the seed of its self-mask.

    Args:
        key: 32 secret bytes of the client's.
        name: of the client.
        attempt: the digest of the attempt's terms.

    Example:
        >>> Secrets(b"k" * 32, "ann", b"1").public == Secrets(b"k" * 32, "ann", b"1").public
        True
        >>> Secrets(b"k" * 32, "ann", b"1").public == Secrets(b"k" * 32, "ann", b"2").public
        False
    """

    def __init__(self, key: bytes, name: str, attempt: bytes) -> None:
        if not isinstance(key, bytes) or len(key) != KEY_BYTES:
            raise ValueError(f"a client's key for secure aggregation is {KEY_BYTES} bytes")
        self._digest_key = derive(key, "digest of the input", attempt, name)
        self.sealing = KeyPair(derive(key, "sealing", attempt, name))
        self.self_seed = derive(key, "self-mask seed", attempt, name, length=SEED_BYTES)
        self.masking_seed = derive(key, "masking seed", attempt, name, length=SEED_BYTES)
        self.masking = masking_pair(self.masking_seed, attempt, name)
        self.public = PublicKeys(
            sealing=self.sealing.public,
            masking=self.masking.public,
            commitment=commitment(self.self_seed, attempt, name),
        )

    def input_digest(self, values: memoryview) -> bytes:
        """Says whether two inputs are the same, to the client alone."""
        return hmac.digest(self._digest_key, values, "sha256")


def masking_pair(seed: bytes, attempt: bytes, name: str) -> KeyPair:
    """The key pair of a client's pairwise masks, from the seed that is shared."""
    return KeyPair(derive(seed, "masking pair", attempt, name))


def commitment(seed: bytes, attempt: bytes, name: str) -> bytes:
    """Binds a client to the seed of its self-mask, and hides it."""
    return derive(seed, "commitment", attempt, name)


def self_mask_key(seed: bytes, attempt: bytes, name: str) -> bytes:
    """The key of a client's self-mask."""
    return derive(seed, "self-mask", attempt, name)


def pairwise_mask_key(own: KeyPair, public: bytes, attempt: bytes, one: str, two: str) -> bytes:
    """The key of the mask that one of two clients adds and the other takes away."""
    return derive(own.agree(public), "pairwise mask", attempt, *sorted((one, two)))


def sealing_key(own: KeyPair, public: bytes, attempt: bytes, sender: str, receiver: str) -> bytes:
    """The key of what one client seals for another in this attempt, in this direction."""
    return derive(own.agree(public), "sealed shares", attempt, sender, receiver)
