"""Sweeps as a user meets them: real processes, killed, interrupted and gone on with."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from dp_fedmed.config import compose
from dp_fedmed.launch import run_federation
from dp_fedmed.run.data_ledger import DataLedger
from dp_fedmed.run.directory import RunDirectory

COMMAND = [sys.executable, "-c", "from dp_fedmed.cli import entry; entry()"]
QUICK = ("federation.num_clients=2", "federation.num_rounds=1", "privacy.sample.grad_mode=hooks")


def dp_fedmed(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, cwd=cwd, timeout=280
    )


def results(sweep: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (sweep / "results.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_a_sweep_writes_its_table_survives_a_failed_job_and_shares_a_ledger(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    shared = [f"data_ledger={tmp_path}/shared/ledger.jsonl", "data.id=biopsies"]
    words = [
        *("--multirun", "privacy=sample", "privacy.sample.target_epsilon=1,4", "seed=0,1"),
        *("federation.num_clients=2,900", "federation.num_rounds=1", *shared, *QUICK[2:]),
    ]
    done = dp_fedmed("run", *words, f"run_dir={sweep}")
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert done.stdout.count("failed: federation.num_clients=900") == 8, "as it happens, at the end"
    assert "Publishing all 4 runs of breast_cancer that protect one record" in done.stdout
    assert re.search(r"at most ε = (9\.9\d|10\.0) at", done.stdout), "the sum, rounded up"
    content = yaml.safe_load((sweep / "sweep.yaml").read_text())
    assert content["swept"] == {
        "privacy.sample.target_epsilon": [1, 4],
        "seed": [0, 1],
        "federation.num_clients": [2, 900],
    }
    assert (content["jobs"], content["schema"], content["command"][2]) == (8, 1, "--multirun")
    rows = results(sweep)
    assert [row["job"] for row in rows] == list(range(8))
    good, bad = rows[::2], rows[1::2]
    assert {row["status"] for row in good} == {"completed"}
    assert {row["status"] for row in bad} == {"failed"}
    assert good[2]["overrides"] == {
        "privacy.sample.target_epsilon": 4,
        "seed": 0,
        "federation.num_clients": 2,
    }
    assert (good[2]["run_dir"], good[2]["epsilon"]["sample"]) == ("004", pytest.approx(4, abs=0.01))
    table = list(csv.DictReader((sweep / "results.csv").open()))
    assert [row["job"] for row in table] == [str(number) for number in range(8)]
    assert float(table[4]["test.balanced_accuracy"]) == good[2]["test"]["balanced_accuracy"]
    kept = yaml.safe_load((sweep / "004" / "config.yaml").read_text())
    assert kept["engine"]["workers"] == 1
    assert kept["model"]["_target_"] == "dp_fedmed.models.FourierLinear", "the recipe of its style"
    assert not (sweep / "001").exists()

    ledger = DataLedger(tmp_path / "shared" / "ledger.jsonl", data_id="biopsies", run="none")
    totals = ledger.totals(delta_record=1e-5, delta_client=1e-5)
    assert totals["runs"] == 4
    assert totals["record"]["epsilon"] > 4

    before = {path: path.stat().st_mtime_ns for path in sweep.glob("*/model.safetensors")}
    again = dp_fedmed("resume", str(sweep))
    assert again.returncode == 1
    assert "8 jobs; 4 are done" in again.stdout
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert [row["seconds"] for row in results(sweep)[::2]] == [row["seconds"] for row in good]
    other = dp_fedmed("run", *words, "training.lr=1", f"run_dir={sweep}")
    assert other.returncode == 2
    assert "holds another sweep" in other.stderr
    assert len(other.stderr.strip().splitlines()) == 1
    changed = dp_fedmed("resume", str(sweep), "seed=5")
    assert (changed.returncode, "would change the sweep" in changed.stderr) == (2, True)


def _worker_of(job: str, process: psutil.Process) -> psutil.Process | None:
    """The process that a job prints from."""
    for child in process.children(recursive=True):
        try:
            if os.readlink(f"/proc/{child.pid}/fd/1").endswith(f"/{job}.log"):
                return child
        except OSError:
            continue
    return None


def _wait_for_rounds(run: Path, rounds: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 200
    while len(RunDirectory(run).metrics()) <= rounds:
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="finds workers through /proc")
@pytest.mark.slow
def test_a_killed_worker_and_ctrl_c_lose_nothing(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    settings = ["privacy=none", *QUICK[:1], "federation.num_rounds=60", "checkpoint.every=3"]
    where = [f"run_dir={sweep}", "hydra.launcher.n_jobs=2"]
    process = subprocess.Popen(
        [*COMMAND, "run", "--multirun", "seed=0,1,2,3", *settings, *where],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    _wait_for_rounds(sweep / "000", 5, process)
    seen = psutil.Process(process.pid)
    worker = _worker_of("000", seen)
    assert worker is not None
    worker.kill()
    _wait_for_rounds(sweep / "002", 5, process)
    children = seen.children(recursive=True)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "Traceback" not in out + err
    assert "job 000 · seed=0 · failed: its process died (killed by SIGKILL)" in out
    assert f"dp-fedmed resume {sweep}" in out
    assert not [child for child in children if child.is_running() and child.status() != "zombie"]
    assert not (sweep / "003" / "model.safetensors").exists()

    done = dp_fedmed("resume", str(sweep))
    assert done.returncode == 0, done.stdout + done.stderr
    assert [(row["status"], row["rounds"]) for row in results(sweep)] == [("completed", 60)] * 4
    whole = run_federation(
        compose([*settings, "seed=0", "engine.workers=1", f"run_dir={tmp_path}/whole"])
    )
    there = (whole.run_dir / "model.safetensors").read_bytes()
    assert (sweep / "000" / "model.safetensors").read_bytes() == there


@pytest.mark.slow
def test_a_preset_needs_no_flag_and_the_command_line_wins_over_it(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    done = dp_fedmed("run", "sweep=baselines", "seed=0", *QUICK, f"run_dir={sweep}")
    assert done.returncode == 0, done.stderr
    rows = results(sweep)
    assert [(row["topology"], row["style"]) for row in rows] == [
        (topology, style)
        for topology in ("federated", "centralized", "local_only")
        for style in ("none", "sample")
    ]
    assert {row["seed"] for row in rows} == {0}
    assert "federation instead of one pool of data" in done.stdout
    wrong = dp_fedmed("run", "sweep=epsilons")
    assert wrong.returncode == 2
    assert "sweep=epsilons is not offered; did you mean 'epsilon'?" in wrong.stderr


@pytest.mark.parametrize("preset", ["epsilon", "styles", "clipping", "clients", "baselines"])
def test_presets_are_sweeps_of_settings_that_exist(preset: str) -> None:
    from dp_fedmed.config import check_overrides, conf_dir
    from dp_fedmed.sweeps.directory import swept_keys

    content = yaml.safe_load((conf_dir() / "sweep" / f"{preset}.yaml").read_text())
    assert content["hydra"]["mode"] == "MULTIRUN"
    words = [f"{key}={value}" for key, value in content["hydra"]["sweeper"]["params"].items()]
    assert check_overrides(words) == words
    assert "seed" in swept_keys(words)
