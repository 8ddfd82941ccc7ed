"""One client through an attempt: its memory, and what it never does twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dp_fedmed.errors import MaskingRefused
from dp_fedmed.federation.secure_aggregation import SecureServer, Terms, UnmaskRequest
from dp_fedmed.privacy.streams import MacKey
from dp_fedmed.site.masking import Masking

NAMES = ("ann", "bob", "eve")
VALUES = np.array([1, -2, 3])
KEY = MacKey.generate()


def terms(attempt: int = 0, server_round: int = 1) -> Terms:
    return Terms(
        run="r:0", server_round=server_round, attempt=attempt, length=3, minimum=3, colluding=1
    )


def site(folder: Path, name: str) -> Masking:
    """As a new process finds it."""
    return Masking(folder / name, name, KEY, durable=False)


def masked(folder: Path, agreed: Terms, about: str = "round 1") -> SecureServer:
    """All clients up to their masked answers, each message in a process of its own."""
    server = SecureServer(agreed)
    for name in NAMES:
        server.take_keys(site(folder, name).advertise(agreed))
    roster = server.roster()
    for name in NAMES:
        server.take_shares(site(folder, name).share(agreed, roster))
    for name, delivery in server.deliveries().items():
        server.add(site(folder, name).mask(agreed, delivery, about, VALUES))
    return server


def unmasked(folder: Path, agreed: Terms, server: SecureServer) -> UnmaskRequest:
    request = server.request()
    for name in NAMES:
        server.take_revealed(site(folder, name).reveal(agreed, request))
    return request


def test_processes_that_end_after_every_message_come_to_the_sum(tmp_path: Path) -> None:
    server = masked(tmp_path, terms())
    unmasked(tmp_path, terms(), server)
    assert np.array_equal(server.total(), 3 * VALUES)


def test_the_same_question_has_the_same_answer(tmp_path: Path) -> None:
    server = masked(tmp_path, terms())
    request = unmasked(tmp_path, terms(), server)
    again = [site(tmp_path, name).reveal(terms(), request) for name in NAMES]
    assert again == [site(tmp_path, name).reveal(terms(), request) for name in NAMES]
    delivery = server.deliveries()["ann"]
    ann = site(tmp_path, "ann")
    one = ann.mask(terms(), delivery, "round 1", VALUES)
    assert np.array_equal(one.values, ann.mask(terms(), delivery, "round 1", VALUES).values)


def test_another_attempt_at_a_round_is_masked_unless_the_first_was_unmasked(
    tmp_path: Path,
) -> None:
    masked(tmp_path, terms(0))
    server = masked(tmp_path, terms(1))  # nobody unmasked the first
    unmasked(tmp_path, terms(1), server)
    with pytest.raises(MaskingRefused, match=r"has unmasked its answer.*new_phase=true"):
        masked(tmp_path, terms(2))


def test_a_round_in_between_makes_nobody_forget(tmp_path: Path) -> None:
    unmasked(tmp_path, terms(0), masked(tmp_path, terms(0)))
    later = terms(1, server_round=2)
    unmasked(tmp_path, later, masked(tmp_path, later, "round 2"))
    with pytest.raises(MaskingRefused, match="has unmasked"):
        masked(tmp_path, terms(3))
    masked(tmp_path, terms(4), "round 1, another model")


def test_an_attempt_that_another_replaced_is_forgotten(tmp_path: Path) -> None:
    server = masked(tmp_path, terms(0))
    site(tmp_path, "ann").advertise(terms(1))
    with pytest.raises(MaskingRefused, match="is in no such attempt"):
        site(tmp_path, "ann").reveal(terms(0), server.request())


def test_other_values_or_sets_in_an_attempt_are_refused(tmp_path: Path) -> None:
    server = masked(tmp_path, terms())
    with pytest.raises(MaskingRefused, match="masked another contribution"):
        site(tmp_path, "ann").mask(terms(), server.deliveries()["ann"], "round 1", VALUES + 1)
    request = unmasked(tmp_path, terms(), server)
    fewer = UnmaskRequest(request.attempt, request.survivors[:2], request.survivors[2:])
    with pytest.raises(MaskingRefused, match="two different sums"):
        site(tmp_path, "ann").reveal(terms(), fewer)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"attempt": 3}'])
def test_a_memory_that_is_damaged_is_no_memory(tmp_path: Path, content: bytes) -> None:
    server = masked(tmp_path, terms())
    (tmp_path / "ann" / "ann.masking").write_bytes(content)
    with pytest.raises(MaskingRefused, match="is in no such attempt"):
        site(tmp_path, "ann").reveal(terms(), server.request())


def test_secrets_are_for_their_owner_alone(tmp_path: Path) -> None:
    masked(tmp_path, terms())
    assert (tmp_path / "ann" / "ann.masking").stat().st_mode & 0o077 == 0
