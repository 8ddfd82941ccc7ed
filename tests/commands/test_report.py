"""`dp-fedmed report`: what it refuses, and its help."""

from __future__ import annotations

from pathlib import Path

import pytest

from dp_fedmed.cli import main


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "dp-fedmed report RUN_OR_SWEEP"),
        (["nowhere"], "nowhere is not a run or sweep directory"),
        (["empty"], "empty holds neither a run (config.yaml) nor a sweep (sweep.yaml)"),
        (["empty", "-o", "page.txt"], "-o page.txt is not an HTML file"),
        (["empty", "--colour"], "report has no flag --colour"),
    ],
)
def test_what_cannot_be_reported_is_one_sentence(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    assert main(["report", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert not list((tmp_path / "empty").iterdir())


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--help"]) == 0
    assert "dp-fedmed report checkpoints/my_run" in capsys.readouterr().out
