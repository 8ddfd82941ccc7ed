"""`dp-fedmed ledger`: its help, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from dp_fedmed.cli import main


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ledger", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "dp-fedmed ledger show RUN_DIR" in shown
    assert "verify exits with 0 if everything agrees" in " ".join(shown.split())


@pytest.mark.parametrize("words", [[], ["show"], ["burn", "checkpoints"], ["show", "a", "b"]])
def test_other_words_are_answered_with_the_help(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ledger", *words]) == 2
    shown = capsys.readouterr()
    assert "dp-fedmed ledger show RUN_DIR" in shown.err
    assert shown.out == ""


@pytest.mark.parametrize("word", ["show", "verify"])
def test_a_folder_without_a_run_is_one_sentence(
    word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ledger", word, str(tmp_path / "nowhere")]) == 2
    assert "nowhere is not a run directory" in capsys.readouterr().err
    assert main(["ledger", word, str(tmp_path)]) != 0
    assert "no run has begun here" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
