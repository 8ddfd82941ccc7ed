"""Errors: one sentence each, and who may read how much of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dp_fedmed.cli import main
from dp_fedmed.errors import ConfigError
from dp_fedmed.federation.failures import describe_failure


def test_the_person_at_the_terminal_sees_the_whole_path_and_nobody_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "scans"
    folder.mkdir()
    assert main(["data", "task=mvtec_folder", f"data.path={folder}"]) == 2
    assert f"data.path={folder} holds neither" in capsys.readouterr().err
    error = ConfigError("data.path=scans is no folder")
    error.path = str(folder)
    assert str(tmp_path) in error.sentence()
    assert str(tmp_path) not in f"{error} {error!r} {describe_failure(error)}"
