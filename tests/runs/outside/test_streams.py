"""Nobody who reads a run's lines can end it, and SIGTERM is Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from dp_fedmed.run.directory import RunDirectory

DP_FEDMED = [sys.executable, "-m", "dp_fedmed"]
QUICK = ("privacy=none", "federation.num_rounds=1", "federation.num_clients=2", "engine.workers=1")


def test_a_whole_run_into_a_closed_pipe_leaves_a_whole_directory(tmp_path: Path) -> None:
    words = " ".join([*QUICK, f"run_dir={tmp_path}/run"])
    done = subprocess.run(
        [
            "bash",
            "-c",
            f'"$0" -m dp_fedmed run {words} | head -1; exit ${{PIPESTATUS[0]}}',
            sys.executable,
        ],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("round 0 - val")
    assert RunDirectory(tmp_path / "run").metrics()[-1]["stopped"] == "completed"
    assert (tmp_path / "run" / "metrics.png").is_file(), "the last file of all"


def test_sigterm_stops_after_the_round_with_a_sentence(tmp_path: Path) -> None:
    words = [*QUICK[2:], "privacy=none", "task=digits", "federation.num_rounds=900"]
    process = subprocess.Popen(
        [*DP_FEDMED, "run", *words, f"run_dir={tmp_path}/run"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and len(RunDirectory(tmp_path / "run").metrics()) < 2:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "stopping after this round" in said
    assert f"Resume with: dp-fedmed resume {tmp_path}/run" in said
    last = RunDirectory(tmp_path / "run").metrics()[-1]
    assert str(last["stopped"]).startswith("interrupted after round")


def test_sigterm_before_anything_has_begun_is_said() -> None:
    script = (
        "import os, signal; from dp_fedmed import cli\n"
        "def command(arguments): os.kill(os.getpid(), signal.SIGTERM)\n"
        "import dp_fedmed.commands.data as data; data.main = command; cli.entry()"
    )
    done = subprocess.run([sys.executable, "-c", script, "data"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "dp-fedmed: interrupted\n")
