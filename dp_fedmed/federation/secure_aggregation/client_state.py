"""What a client must remember of an attempt, so that it never answers it in two ways."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dp_fedmed.federation.secure_aggregation.plain import Plain


@dataclass(frozen=True, kw_only=True)
class ClientState(Plain):
    """One client's memory of one attempt: secret, and durable before each answer leaves the site.

    What has not happened yet is empty.

    Attributes:
        attempt: the digest of its terms.
        name: of the client.
        roster: the public keys that it was sent.
        sealed: the shares that it made, sealed: Shamir's polynomials cannot be made again.
        own_share: its share of its own self-mask.
        delivery: the digest of the shares that it was sent.
        held: by neighbour, the share of its self-mask followed by that of its masking key.
        masked: a keyed digest of the input that it masked.
        request: the digest of the sets that it unmasked.

    Example:
        >>> ClientState(attempt=b"1", name="ann", own_share=b"secret")
        ClientState(attempt=b'1', name='ann', delivery=b'', masked=b'', request=b'')
    """

    attempt: bytes
    name: str
    roster: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    sealed: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    own_share: bytes = field(default=b"", repr=False)
    delivery: bytes = b""
    held: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    masked: bytes = b""
    request: bytes = b""
