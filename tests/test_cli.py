"""What the commands answer, in this process: flags and folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from dp_fedmed.cli import main
from dp_fedmed.config import conf_dir


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A config folder of one's own with one task."""
    (tmp_path / "conf" / "task").mkdir(parents=True)
    text = (conf_dir() / "task" / "breast_cancer.yaml").read_text()
    (tmp_path / "conf" / "task" / "mine.yaml").write_text(
        text.replace('"${task_name:breast_cancer}"', "my_breast_cancer", 1)
    )
    return tmp_path / "conf"


@pytest.mark.parametrize("command", [["plan", "--fast"], ["data"], ["run", "--cfg", "job"]])
def test_a_config_folder_of_ones_own_is_known_to_every_command(
    command: list[str],
    own: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(own.parent)
    assert main([*command, "--config-dir", "conf", "task=mine", "privacy=sample"]) == 0
    assert "my_breast_cancer" in capsys.readouterr().out or command == ["data"]
    assert main([*command, "--config-dir=elsewhere", "task=mine"]) == 2
    assert f"--config-dir {own.parent}/elsewhere is not a folder" in capsys.readouterr().err
    assert main([*command, "task=mine", "--config-dir"]) == 2
    assert "--config-dir (nothing) is not a folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "--mutirun"], "run has no flag --mutirun; did you mean --multirun?"),
        (["data", "--info"], "data has no flag --info"),
        (["reconstruct", "--cfg", "job"], "reconstruct has no flag --cfg"),
        (["plan", "--info"], "plan has no flag --info; its flags are --fast, --json, --plot"),
        (["run", "--epsilon", "3"], "did you mean privacy.sample.target_epsilon=3?"),
        (["run", "--privacy", "sample"], "did you mean privacy=sample?"),
        (["run", "--num-rounds=5"], "did you mean federation.num_rounds=5?"),
        (["train"], "there is no command 'train'; did you mean run?"),
        (["version"], "did you mean --version?"),
        (["predict"], "not offered yet"),
        (["run", "allow_code=my_package"], "write allow_code=[my_package]"),
        (["run", "federation.num_clients=five"], "num_clients=five does not fit: it takes a whole"),
        (["plan", "privacy.accountant=prv"], "=prv is not offered: choose from rdp, pld, tight"),
        (["run", "privacy.sample.grad_mode=ghost"], "ghost clipping is gone"),
        (["audit", "--info"], "audit has no flag --info"),
        (["--shell-completion", "install"], "--shell-completion install is not known"),
    ],
)
def test_a_flag_that_a_command_does_not_have_is_one_sentence(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    told = capsys.readouterr().err
    assert said in told
    assert len(told.splitlines()) == 1


def test_hydras_info_needs_no_word_after_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--info", "task=digits"]) == 0
    assert "name: digits" in capsys.readouterr().out
