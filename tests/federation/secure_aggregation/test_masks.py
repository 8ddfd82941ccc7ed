"""Masks are the key stream itself, whatever the length, and are made in blocks."""

from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from dp_fedmed.federation.secure_aggregation.masks import add_mask

KEY = bytes(range(32))


@pytest.mark.parametrize("length", [1, 2, 32_767, 32_768, 32_769, 100_000])
def test_a_mask_is_its_keys_stream(length: int) -> None:
    total = np.zeros(length, np.uint64)
    add_mask(total, KEY, 1)
    stream = Cipher(algorithms.AES(KEY), modes.CTR(bytes(16))).encryptor().update(bytes(8 * length))
    assert total.tobytes() == stream


def test_what_one_adds_the_other_takes_away() -> None:
    total = np.arange(70_000, dtype=np.uint64)
    add_mask(total, KEY, -1)
    assert np.count_nonzero(total == np.arange(70_000)) == 0
    add_mask(total, KEY, 1)
    assert np.array_equal(total, np.arange(70_000))
