"""The command line as a user meets it: real processes, real runs."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from dp_fedmed.config import compose
from dp_fedmed.run.directory import RunDirectory


def dp_fedmed(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from dp_fedmed.cli import entry; entry()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=240)


def test_help_answers_without_importing_anything_heavy() -> None:
    probe = (
        "import sys; from dp_fedmed.cli import main; code = main(['--help']); "
        "heavy = {'hydra', 'omegaconf', 'torch', 'flwr', 'numpy', 'rich'} & set(sys.modules); "
        "assert not heavy, heavy; sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "dp-fedmed run task=digits" in done.stdout


def test_run_help_and_config_listing_do_not_import_torch() -> None:
    for arguments in (["run", "--help"], ["run", "--cfg", "job", "task=cells"]):
        probe = (
            f"import sys; from dp_fedmed.cli import main; main({arguments!r}); "
            "heavy = {'torch', 'flwr', 'sklearn'} & set(sys.modules); assert not heavy, heavy"
        )
        done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "federation" in done.stdout


def test_a_run_writes_its_directory_and_a_table(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = dp_fedmed("run", "privacy=none", "federation.num_rounds=3", f"run_dir={folder}")
    assert done.returncode == 0, done.stderr
    assert "balanced_accuracy" in done.stdout
    assert str(folder) in done.stdout
    names = {path.name for path in folder.iterdir()}
    assert {f"round_{n:04d}" for n in range(1, 4)} <= names
    assert {name for name in names if not name.startswith("round_")} == {
        ".lock",
        "best",
        "config.yaml",
        "environment.json",
        "evaluation.json",
        "last",
        "metrics.jsonl",
        "metrics.png",
        "model.safetensors",
        "partition.json",
        "partition.png",
        "privacy_card.md",
        "privacy_report.json",
        "private",
        "run.log",
    }
    rows = RunDirectory(folder).metrics()
    assert [row.get("round") for row in rows] == [0, 1, 2, 3, None]
    assert rows[-1]["test"]["accuracy"] > 0.8
    assert json.loads((folder / "privacy_report.json").read_text())["guarantees"] == []


@pytest.mark.slow
def test_two_runs_never_share_a_directory(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert (
        dp_fedmed("run", "privacy=none", "federation.num_rounds=1", f"run_dir={folder}").returncode
        == 0
    )
    before = (folder / "model.safetensors").read_bytes()
    again = dp_fedmed("run", "privacy=none", "federation.num_rounds=2", f"run_dir={folder}")
    assert again.returncode == 2
    assert "already holds a run" in again.stderr
    assert (folder / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rnu"], "did you mean run?"),
        (["run", "federation.num_round=3"], "did you mean 'federation.num_rounds'"),
        (["run", "task=digit"], "did you mean 'digits'"),
        (["run", "federation.num_clients=100000"], "federation.num_clients"),
        (["run", "task=medmnist"], "data.path"),
        (["run", "training.lr=abc"], "training.lr=abc"),
        (["run", "training.optimizer=adagrad"], "choose from sgd, adam, adamw"),
        (["run", "training.device=cuda:7"], "training.device=cuda:7 is not available"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_no_directory(
    arguments: list[str], said: str, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    where = [f"run_dir={folder}"] if arguments[0] == "run" else []
    done = dp_fedmed(*arguments, *where)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not folder.exists()


def test_the_written_config_gives_the_same_run_again(tmp_path: Path) -> None:
    from omegaconf import OmegaConf

    from dp_fedmed.config import from_dictconfig

    config = compose(["task=digits", "privacy=none", "training.lr=1e-5", f"run_dir={tmp_path}/x"])
    directory = RunDirectory.create(config)
    read = OmegaConf.load(directory.path / "config.yaml")
    assert from_dictconfig(read) == config  # type: ignore[arg-type]


def test_ctrl_c_keeps_the_last_model_and_leaves_no_process(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-c", "from dp_fedmed.cli import entry; entry()", "run"]
    process = subprocess.Popen(
        [*command, "task=digits", "privacy=none", "federation.num_rounds=500", f"run_dir={folder}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        # A shell's background job passes on that SIGINT is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and len(RunDirectory(folder).metrics()) < 3:
        time.sleep(0.1)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    assert RunDirectory(folder).load_model()
    assert not [child for child in children if child.is_running() and child.status() != "zombie"]


def test_a_users_own_config_folder_is_used(tmp_path: Path) -> None:
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "mine.yaml").write_text("lr: 1e-3\noptimizer: adamw\n")
    (tmp_path / "training" / "typo.yaml").write_text("lrr: 1e-3\n")
    words = ["--config-dir", str(tmp_path), "privacy=none"]
    shown = dp_fedmed("run", *words, "training=mine", "--cfg", "job")
    assert "lr: 0.001" in shown.stdout, shown.stderr
    wrong = dp_fedmed("run", *words, "training=typo")
    assert wrong.returncode == 2
    assert "did you mean 'training.lr'" in wrong.stderr


@pytest.mark.slow
def test_a_run_is_resumed_and_its_ledger_shown(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    settings = ["privacy=hybrid", "federation.num_clients=6", "federation.num_rounds=2"]
    done = dp_fedmed("run", *settings, f"run_dir={folder}", "privacy.sample.grad_mode=hooks")
    assert done.returncode == 0, done.stderr
    assert "what is promised to whom" in done.stdout, "every private run says what it promises"
    again = dp_fedmed("resume", str(folder))
    assert again.returncode == 0
    assert "is finished: 2 rounds, completed" in again.stdout
    spent = dp_fedmed("resume", str(folder), "federation.num_rounds=3")
    assert spent.returncode == 2
    assert "new_phase=true" in spent.stderr
    more = ["federation.num_rounds=3", "new_phase=true", "privacy.sample.target_epsilon=6"]
    extended = dp_fedmed("run", f"resume={folder}", *more, "privacy.user.target_epsilon=16")
    assert extended.returncode == 0, extended.stderr
    assert "3 of 3 rounds" in extended.stdout
    shown = dp_fedmed("ledger", "show", str(folder))
    assert shown.returncode == 0
    assert "phase 1 begins" in shown.stdout
    assert "client-0000" not in shown.stdout
    assert not re.search(r"[0-9a-f]{32}", shown.stdout), "no digest is shown"
    assert dp_fedmed("ledger", "verify", str(folder)).returncode == 0
    report = folder / "privacy_report.json"
    report.write_text(report.read_text().replace('"epsilon": 5.', '"epsilon": 1.'))
    wrong = dp_fedmed("ledger", "verify", str(folder))
    assert wrong.returncode == 1
    assert "the ledger gives" in " ".join(wrong.stdout.split())
