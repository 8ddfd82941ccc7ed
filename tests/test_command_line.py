"""What the commands answer, in this process: flags, folders, versions and paths."""

from __future__ import annotations

import json
import logging
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dp_fedmed import __version__, server_app
from dp_fedmed.cli import main
from dp_fedmed.config import compose, conf_dir, from_yaml
from dp_fedmed.config.arithmetic import not_against_server
from dp_fedmed.config.resume import stored_settings
from dp_fedmed.errors import ConfigError
from dp_fedmed.federation.failures import describe_failure
from dp_fedmed.reporting.run_facts import read_run
from dp_fedmed.run.directory import RunDirectory
from dp_fedmed.run.privacy_report import observers
from dp_fedmed.sweeps.directory import SweepDirectory


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


def test_words_are_completed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def completed(line: str) -> list[str]:
        monkeypatch.setenv("COMP_LINE", line)
        assert main(["-sc", "query=bash"]) == 0
        return capsys.readouterr().out.split()

    assert completed("dp-fedmed re") == ["resume", "report", "reconstruct"]
    assert completed("dp-fedmed run task=di") == ["task=diabetes", "task=digits"]
    assert completed("dp-fedmed plan federation.num_r") == ["federation.num_rounds="]
    assert main(["run", "--shell-completion", "install=bash"]) == 0
    assert capsys.readouterr().out.rstrip().endswith("hydra_bash_completion dp-fedmed")


def test_a_folder_with_other_files_is_nobodys_run(tmp_path: Path) -> None:
    for name in ("thesis.docx", ".lock"):
        (tmp_path / name).touch()
    with pytest.raises(ConfigError, match=r"is not empty and is no run's: it holds thesis\.docx;"):
        RunDirectory.create(compose([f"run_dir={tmp_path}"]))
    with pytest.raises(ConfigError, match="is not empty and is no run's"):
        SweepDirectory(tmp_path, ["dp-fedmed"], [])
    assert sorted(os.listdir(tmp_path)) == [".lock", "thesis.docx"]
    (tmp_path / "thesis.docx").unlink()
    assert RunDirectory.create(compose([f"run_dir={tmp_path}"])).path == tmp_path


@pytest.mark.parametrize(
    ("writer", "said"),
    [
        ("9.1.0", r"written by dp-fedmed 9\.1\.0.*pip install dp-fedmed==9\.1\.0"),
        (None, "written by another version"),
        (__version__, "take out what was put in by hand"),
    ],
)
def test_settings_of_another_version_name_it(writer: str | None, said: str, tmp_path: Path) -> None:
    text = (
        compose([f"run_dir={tmp_path}"])
        .to_yaml()
        .replace("training:\n", "training:\n  warmup: 3\n")
    )
    (tmp_path / "config.yaml").write_text(text)
    if writer is not None:
        stretch = {"after_round": -1, "versions": {"dp_fedmed": writer}}
        (tmp_path / "environment.json").write_text(json.dumps({"stretches": [stretch]}))
    with pytest.raises(ConfigError, match=rf"the setting 'training\.warmup', which.*{said}"):
        stored_settings(tmp_path)


def test_any_key_of_a_models_arguments_is_read_back() -> None:
    config = compose(
        ["model.args.anything={a: [1], b: null}", "model._target_=dp_fedmed.models.MLP"]
    )
    assert from_yaml(config.to_yaml()) == config


def test_a_report_of_a_newer_version_promises_nothing(tmp_path: Path) -> None:
    guarantee = {"unit": "record", "epsilon": 1.0, "delta": 1e-5}
    for schema, held in ((1, 1), (99, 0)):
        content = {"schema": schema, "guarantees": [guarantee]}
        (tmp_path / "privacy_report.json").write_text(json.dumps(content))
        facts = read_run(tmp_path, ledger=False)
        assert len(facts.guarantees) == held
        assert any("schema 99" in problem for problem in facts.problems) is (not held)


@pytest.mark.parametrize(
    "words",
    [
        ["privacy=sample"],
        ["privacy=user"],
        ["privacy=hybrid"],
        ["privacy=sample", "federation=centralized"],
        ["task=textures", "privacy=sample"],
        ["task=textures", "privacy=sample", "anomaly.server_trusted=false"],
    ],
)
def test_what_is_not_against_the_server_is_what_the_observer_table_leaves_out(
    words: list[str],
) -> None:
    config = compose(words)
    style = config.privacy.style
    units = [
        u
        for u, held in (("record", style.protects_records), ("client", style.protects_clients))
        if held
    ]
    (server, _) = observers(config, [{"unit": u, "epsilon": 1.0, "delta": 1e-5} for u in units])
    assert len(not_against_server(config)) == sum(server[unit] is None for unit in units)


def test_plan_says_when_the_server_is_trusted(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "--json", "--records", "50,50", "task=textures", "privacy=sample"]
    assert main(words) == 0
    assert "server is trusted" in " ".join(json.loads(capsys.readouterr().out)["notes"])
    assert main([*words, "anomaly.server_trusted=false"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == []


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


def test_under_flwr_run_the_folder_is_told_and_sigterm_asks_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[Any] = []

    def serve(grid: Any, config: Any, display: Any, *, stop: Any, **more: Any) -> None:
        with stop.during_rounds(lambda: None):
            os.kill(os.getpid(), signal.SIGTERM)
            asked.append(stop.after_round)

    monkeypatch.setattr(server_app, "serve", serve)
    monkeypatch.setattr(server_app, "show_on_stdout", lambda: None)
    monkeypatch.setenv("HOME", str(tmp_path))
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    app = server_app.build_server_app()
    context = SimpleNamespace(run_config={"task": "digits", "privacy": "none"}, run_id=7)
    with caplog.at_level(logging.INFO, "dp_fedmed"):
        app._main(None, context)  # type: ignore[misc, arg-type]
    signal.signal(signal.SIGTERM, before)
    assert asked == [True]
    assert f"{tmp_path}/dp_fedmed/checkpoints/flower_7_digits_none" in caplog.text
