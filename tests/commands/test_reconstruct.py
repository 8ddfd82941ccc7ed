"""`dp-fedmed reconstruct`: what it writes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dp_fedmed.cli import main
from dp_fedmed.evidence import reconstruction


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["privacy=sample"], "compares the privacy styles by itself"),
        (["run_dir=/runs/x"], "leave it out"),
        (["task=cells"], "masks instead of classes"),
        (["task=breast_cancer"], "--show-records"),
        (["--show-records", "task=breast_cancer"], "has no images"),
        (["training.optimizer=adam"], "training.optimizer=sgd"),
        (["federation.num_clients=5"], "federation.num_clients=146"),
        (["task=digit"], "did you mean 'digits'"),
    ],
)
def test_what_cannot_be_rebuilt_is_refused_in_one_sentence(
    words: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["reconstruct", *words]) == 2
    message = capsys.readouterr().err
    assert said in message
    assert message.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_the_command_writes_a_picture_and_figures_without_records(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(reconstruction, "STYLES", {"none": ("privacy=none",)} | {
        "sample, ε = 1": reconstruction.STYLES["sample, ε = 1"]
    })  # fmt: skip
    monkeypatch.setattr(reconstruction, "STEPS", 40)
    assert main(["reconstruct"]) == 0
    assert "Without privacy the server rebuilds" in capsys.readouterr().out.replace("\n", " ")
    assert (tmp_path / "reconstruction.png").stat().st_size > 5_000
    report = json.loads((tmp_path / "reconstruction.json").read_text())
    assert [row["style"] for row in report["rows"]] == ["none", "sample, ε = 1", "no update at all"]
    assert set(report["rows"][0]) == {
        *("style", "psnr", "ssim", "psnr_by_record", "ssim_by_record"),
    }
