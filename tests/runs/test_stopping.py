"""Ctrl-C: first after the round, then at once; in whichever state, the run can go on."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dp_fedmed.config import compose
from dp_fedmed.launch import run_federation
from dp_fedmed.run.directory import RunDirectory
from dp_fedmed.run.verify import LedgerView

SETTINGS = [
    *("task=digits", "recipe=none", "federation.num_clients=4", "federation.num_rounds=400"),
    *("checkpoint.every=300", "model._target_=dp_fedmed.models.MLP", "model.args.hidden=[4]"),
]
HYBRID = ("privacy=hybrid", "privacy.sample.grad_mode=hooks")
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def command(folder: Path, *words: str) -> list[str]:
    start = [sys.executable, "-c", "from dp_fedmed.cli import entry; entry()", "run"]
    return [*start, *SETTINGS, f"run_dir={folder}", *words]


def let_ctrl_c_work() -> None:
    """A shell's background job passes on that SIGINT is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Terminal:
    """A run in a terminal of its own, where Ctrl-C reaches the whole process group."""

    def __init__(self, words: list[str]) -> None:
        self.pid, self.screen = pty.fork()
        if self.pid == 0:
            let_ctrl_c_work()
            os.environ |= {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
            os.execv(words[0], words)
        fcntl.ioctl(self.screen, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        self.seen = ""

    def read_until(self, done: Callable[[str], bool], seconds: float = 120.0) -> None:
        deadline = time.monotonic() + seconds
        while not done(self.seen):
            assert time.monotonic() < deadline, self.seen[-3000:]
            if select.select([self.screen], [], [], 0.2)[0]:
                try:
                    new = os.read(self.screen, 65536)
                except OSError:  # the other end is closed
                    return
                self.seen += ESCAPES.sub("", new.decode(errors="replace"))

    def press_ctrl_c(self) -> None:
        os.write(self.screen, b"\x03")

    def exit_code(self) -> int:
        self.read_until(lambda _: False)
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status)


@pytest.mark.slow
def test_on_a_terminal_the_panel_is_drawn_and_ctrl_c_ends_the_round(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    rounds_to_be_seen = "training.local_steps=40"  # of some tenths of a second
    terminal = Terminal(command(folder, *HYBRID, "engine.workers=2", rounds_to_be_seen))
    terminal.read_until(lambda seen: re.search(r"\b[2-9] of 400", seen) is not None)
    terminal.press_ctrl_c()
    assert terminal.exit_code() == 130
    seen = terminal.seen
    assert "digits, privacy hybrid, 4 clients" in seen
    assert re.search(r"one record +\S+ +ε \d\.\d{3} of 3 \(\d+%\)", seen)
    assert re.search(r"one client +\S+ +ε \d\.\d{3} of 8 \(\d+%\)", seen)
    assert re.search(r"accuracy 0\.\d{4} [+−]0\.\d{4}", seen)
    assert "left" in seen
    assert "answered" not in seen, "cohorts are secret"
    said = re.findall(r"stopping after round (\d+); Ctrl-C again stops at once", seen)
    ended = re.search(r"interrupted after round (\d+)", seen)
    assert said
    assert ended is not None
    assert ended[1] == said[0]
    assert "Resume with: dp-fedmed resume" in seen
    last = int(ended[1])
    assert (folder / f"round_{last:04d}").is_dir(), "the round that ended is on disk"
    assert (folder / "last").resolve().name == f"round_{last:04d}"
    assert [row.get("round") for row in RunDirectory(folder).metrics()][:-1] == [*range(last + 1)]
    result = run_federation(
        compose([f"run_dir={folder}", "resume=last", f"federation.num_rounds={last + 1}"])
    )
    assert (result.stopped, result.rounds) == ("completed", last + 1)
    charged = [r.body["round"] for r in LedgerView(folder).ledger.records if r.kind == "CHARGE"]
    assert charged == [*range(1, last + 2)], "no round is paid for twice"


def test_without_a_terminal_there_are_lines_and_a_second_ctrl_c_ends_at_once(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run"
    process = subprocess.Popen(
        command(folder, "engine.workers=1", "training.local_steps=100000", "privacy=none"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        preexec_fn=let_ctrl_c_work,
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("round 0 · val accuracy")
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "stopping after this round; Ctrl-C again stops at once\n"
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in rest
    assert "\x1b" not in rest
    # Amid round 1; or, if the first came just before it, while the end was being written.
    assert "interrupted after round 0" in rest or "Interrupted." in rest
    assert f" with: dp-fedmed resume {folder}" in rest.replace("\n", "")
    again = ["federation.num_rounds=1", "training.local_steps=1", "new_phase=true"]
    result = run_federation(compose([f"run_dir={folder}", "resume=last", *again]))
    assert (result.stopped, result.rounds) == ("completed", 1)


def test_sigterm_to_the_whole_group_costs_the_round_no_client(tmp_path: Path) -> None:
    """As `timeout`, systemd and batch systems send it: workers get it too."""
    folder = tmp_path / "run"
    words = ("engine.workers=2", "training.local_steps=1000", "privacy=none")
    process = subprocess.Popen(
        command(folder, *words),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    )
    assert process.stdout is not None
    while not (line := process.stdout.readline()).startswith("round 1 ·"):
        assert line
    time.sleep(0.3)  # amid round 2
    os.killpg(process.pid, signal.SIGTERM)
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == 130, rest
    assert "died" not in rest
    assert "interrupted after round" in rest
    rows = [row for row in RunDirectory(folder).metrics() if "failed" in row]
    assert len(rows) > 1
    assert not any(row["failed"] for row in rows)
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
