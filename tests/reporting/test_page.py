"""The parts of a page."""

from __future__ import annotations

import base64

from dp_fedmed.reporting.page import banner, data_address, tile


def test_a_bar_is_never_longer_than_its_tile() -> None:
    assert tile("3", "rounds") == {"value": "3", "label": "rounds", "share": None}
    assert [tile("", "", share)["share"] for share in (-1.0, 0.1234, 7.0)] == [0.0, 12.3, 100.0]


def test_a_picture_is_held_by_its_address() -> None:
    address = data_address(b"\x89PNG")
    assert base64.b64decode(address.removeprefix("data:image/png;base64,")) == b"\x89PNG"


def test_a_banner_takes_any_points() -> None:
    assert banner("bad", "no", (word for word in "ab"))["points"] == ["a", "b"]
    assert banner("good", "yes")["points"] == []
