"""Files that are whole or not there."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from dp_fedmed.privacy.files import write_file


@pytest.mark.parametrize("is_durable", [True, False])
def test_a_file_is_replaced_whole_with_its_mode(is_durable: bool, tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_bytes(b"before")
    write_file(target, b"after", mode=0o600, durable=is_durable)
    assert target.read_bytes() == b"after"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [target]


def test_a_write_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "file"
    target.write_bytes(b"before")

    def refuse(*_: object) -> None:
        raise OSError("disk is gone")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="disk is gone"):
        write_file(target, b"after")
    assert target.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [target], "nothing is left lying about"
