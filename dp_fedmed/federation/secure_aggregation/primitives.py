"""Cryptographic primitives under names of ours; none of them is written here.

X25519, HKDF-SHA256 and AES come from `cryptography`; sealing (Fernet: AES-CBC with HMAC-SHA256)
from Flower; Shamir's shares in GF(2¹²⁸) from pycryptodome, which Flower's own shares are made by,
at half the cost of Flower's padded ones. It draws its polynomials from the operating system, so
who must repeat shares keeps those that were made.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Final

from Crypto.Protocol.SecretSharing import Shamir
from cryptography.fernet import InvalidToken
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from flwr.common.secure_aggregation.crypto.symmetric_encryption import decrypt, encrypt

from dp_fedmed.errors import MaskingRefused
from dp_fedmed.privacy.streams.keys import length_prefixed

KEY_BYTES: Final = 32
SEED_BYTES: Final = 16  # what Shamir's field holds
_LABEL: Final = b"dp_fedmed secure aggregation v1"


def derive(
    secret: bytes, purpose: str, attempt: bytes, *names: str, length: int = KEY_BYTES
) -> bytes:
    """Bytes for one purpose in one attempt between the named parties; HKDF.

    >>> one = derive(b"s" * 32, "mask", b"attempt 1", "ann", "bob")
    >>> one == derive(b"s" * 32, "mask", b"attempt 2", "ann", "bob")
    False
    """
    parts = [_LABEL, purpose.encode(), attempt, *(name.encode() for name in names)]
    info = length_prefixed(parts)
    return HKDF(algorithm=hashes.SHA256(), length=length, salt=None, info=info).derive(secret)


class KeyPair:
    """A key pair of X25519, made of 32 secret bytes; it prints as its public half.

    >>> ann, bob = KeyPair(b"a" * 32), KeyPair(b"b" * 32)
    >>> ann.agree(bob.public) == bob.agree(ann.public)
    True
    """

    def __init__(self, secret: bytes) -> None:
        self._private = X25519PrivateKey.from_private_bytes(secret)
        self.public = self._private.public_key().public_bytes_raw()

    def agree(self, public: bytes) -> bytes:
        """The secret that only the holders of the two private halves know.

        Raises:
            MaskingRefused: for bytes that are no usable public key.
        """
        try:
            return self._private.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError:  # a wrong length, or a point that makes every secret the same
            raise MaskingRefused(
                "a public key of secure aggregation is not one of X25519"
            ) from None

    def __repr__(self) -> str:
        return f"KeyPair({self.public.hex()})"


def seal(key: bytes, content: bytes) -> bytes:
    """Encrypt and authenticate; two calls give different bytes."""
    return encrypt(base64.urlsafe_b64encode(key), content)


def unseal(key: bytes, sealed: bytes) -> bytes | None:
    """What was sealed; None where another key sealed it or a bit of it was changed.

    >>> unseal(b"k" * 32, seal(b"k" * 32, b"share")), unseal(b"K" * 32, seal(b"k" * 32, b"share"))
    (b'share', None)
    """
    try:
        return decrypt(base64.urlsafe_b64encode(key), sealed)
    except InvalidToken:
        return None


def split(seed: bytes, threshold: int, count: int) -> list[bytes]:
    """Shares of a seed for the holders 1, …, `count`; fewer than the threshold say nothing."""
    return [bytes(share) for _, share in Shamir.split(threshold, count, seed, False)]


def rebuild(shares: Mapping[int, bytes]) -> bytes:
    """The seed of exactly as many shares as the threshold, by the holders' numbers.

    >>> first, _, third = split(b"0123456789abcdef", 2, 3)
    >>> rebuild({1: first, 3: third})
    b'0123456789abcdef'
    """
    return bytes(Shamir.combine(list(shares.items()), False))
