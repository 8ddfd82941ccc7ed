"""`dp-fedmed attack`: its words, its files and its exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dp_fedmed.cli import main
from dp_fedmed.evidence import membership
from tests.runs.finished import WORDS, make_run


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "sample"
    make_run(path, [*WORDS["sample"], "federation.num_rounds=1"])
    return path


@pytest.mark.parametrize("words", [["seed=3"], ["data.path=/a", "data.path=/b"]])
def test_settings_are_those_of_the_run(
    words: list[str], run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["attack", str(run_dir), *words]) == 2
    assert "the settings are those of the run" in capsys.readouterr().err
    assert not (run_dir / "attack.json").exists()


def test_a_private_run_is_attacked_shown_and_written_down(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["attack", str(run_dir)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    report = json.loads((run_dir / "attack.json").read_text())
    assert f"{report['auc']:.4f}" in shown
    assert report["statement"][:40] in shown
    assert "outside the guarantee" in shown
    assert (run_dir / "attack.png").stat().st_size > 1000


def test_a_broken_promise_has_an_exit_code_of_its_own(
    run_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"fpr_at_most": 0.01, "tpr_at_least": 0.9, "allowed": 0.1}
    beyond: Any = property(lambda self: [row])
    monkeypatch.setattr(membership.MembershipAttack, "beyond", beyond)
    assert main(["attack", str(run_dir)]) == 3
    assert "THE ATTACK EXCEEDS THE BOUND" in capsys.readouterr().out
