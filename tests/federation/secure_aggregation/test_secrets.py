"""Secrets follow from the client's key, name and attempt; keys differ by purpose and pair."""

from __future__ import annotations

import pytest

from dp_fedmed.errors import MaskingRefused
from dp_fedmed.federation.secure_aggregation.primitives import KeyPair, seal, unseal
from dp_fedmed.federation.secure_aggregation.secrets import (
    Secrets,
    commitment,
    masking_pair,
    pairwise_mask_key,
    sealing_key,
    self_mask_key,
)

KEY, A = b"k" * 32, b"attempt"


def test_every_secret_depends_on_key_name_and_attempt() -> None:
    made = [Secrets(KEY, "ann", A), Secrets(b"K" * 32, "ann", A)]
    made += [Secrets(KEY, "bob", A), Secrets(KEY, "ann", b"another")]
    assert len({secrets.public for secrets in made}) == 4
    assert len({secrets.self_seed for secrets in made} | {s.masking_seed for s in made}) == 8
    assert len({secrets.input_digest(memoryview(b"x")) for secrets in made}) == 4


def test_the_two_of_a_pair_derive_one_mask_key_and_two_sealing_keys() -> None:
    ann, bob = KeyPair(b"a" * 32), KeyPair(b"b" * 32)
    mask = pairwise_mask_key(ann, bob.public, A, "ann", "bob")
    assert mask == pairwise_mask_key(bob, ann.public, A, "bob", "ann")
    there = sealing_key(ann, bob.public, A, "ann", "bob")
    assert there == sealing_key(bob, ann.public, A, "ann", "bob")
    back = sealing_key(ann, bob.public, A, "bob", "ann")
    later = pairwise_mask_key(ann, bob.public, b"later", "ann", "bob")
    assert len({mask, there, back, later}) == 4


def test_what_is_derived_from_a_seed_differs_by_purpose() -> None:
    seed = bytes(16)
    made = {commitment(seed, A, "ann"), self_mask_key(seed, A, "ann")}
    assert len(made | {masking_pair(seed, A, "ann").public}) == 3


def test_a_changed_bit_does_not_open() -> None:
    sealed = seal(KEY, b"share")
    assert unseal(KEY, sealed) == b"share"
    for place in (0, len(sealed) // 2, len(sealed) - 5):
        changed = bytearray(sealed)
        changed[place] ^= 1
        assert unseal(KEY, bytes(changed)) is None


@pytest.mark.parametrize("public", [b"", bytes(31), bytes(32), (1).to_bytes(32, "little")])
def test_a_public_key_that_is_none_is_refused(public: bytes) -> None:
    with pytest.raises(MaskingRefused, match="X25519"):
        KeyPair(KEY).agree(public)


def test_a_key_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        Secrets(b"short", "ann", A)
