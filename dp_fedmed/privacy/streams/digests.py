"""Digests of what a noise stream depends on, and encodings that cannot be confused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


def public_digest(
    *, arrays: Iterable[NDArray[Any]] = (), config: Mapping[str, Any] | None = None
) -> bytes:
    """32 bytes over the model that was sent and the config in force (σ, C, q, lr, …).

    Example:
        >>> one = public_digest(arrays=[np.zeros(3)], config={"sigma": 1.0, "C": 1.0})
        >>> two = public_digest(arrays=[np.zeros(3)], config={"C": 1.0, "sigma": 1.0})
        >>> one == two, len(one)
        (True, 32)
    """
    text = json.dumps(dict(config or {}), sort_keys=True, allow_nan=False, ensure_ascii=True)
    return hashlib.sha256(
        length_prefixed([b"dp_fedmed public digest v1", array_digest(arrays), text.encode()])
    ).digest()


def array_digest(arrays: Iterable[NDArray[Any]]) -> bytes:
    """Plain SHA-256 over dtypes, shapes and values, in order."""
    digest = hashlib.sha256(b"dp_fedmed arrays v1")
    for array in arrays:
        data = np.ascontiguousarray(array)
        if data.dtype.hasobject:
            raise TypeError("arrays of Python objects have no stable bytes to digest")
        header = f"{data.dtype.str}{np.shape(array)}".encode()
        digest.update(length_prefixed([header, data.nbytes.to_bytes(8, "big")]))
        digest.update(data.reshape(-1).view(np.uint8).data)
    return digest.digest()


def length_prefixed(fields: Iterable[bytes | None]) -> bytes:
    """Concatenation that can be taken apart in one way only; None differs from empty."""
    parts = []
    for field in fields:
        parts.append(b"\0" if field is None else b"\1" + len(field).to_bytes(8, "big") + field)
    return b"".join(parts)
