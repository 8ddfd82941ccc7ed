"""Plain values are tested with the messages that are made of them: `test_messages.py`."""

from __future__ import annotations

from dp_fedmed.federation.secure_aggregation.messages import Revealed


def test_digests_do_not_depend_on_the_order_of_names_and_do_on_every_value() -> None:
    one = Revealed(b"1", "ann", {"ann": b"x", "bob": b"y"}, {})
    assert one.digest() == Revealed(b"1", "ann", {"bob": b"y", "ann": b"x"}, {}).digest()
    others = [
        Revealed(b"1", "ann", {"ann": b"y", "bob": b"x"}, {}),
        Revealed(b"1", "ann", {}, {"ann": b"x", "bob": b"y"}),
        Revealed(b"1", "ann", {"ann": b"xy", "bob": b""}, {}),
        Revealed(b"1", "bob", {"ann": b"x", "bob": b"y"}, {}),
    ]
    assert len({one.digest(), *(other.digest() for other in others)}) == 5
