"""Nobody who reads what a command says can end it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

DP_FEDMED = [sys.executable, "-m", "dp_fedmed"]
#: A command that writes a lot, at once; run in a process of its own with streams that fail.
LOUD = """
import sys
from dp_fedmed import cli
def main(arguments=None):
    for number in range(20_000):
        print("ε", number)
    print("done", file=sys.stderr)
    return 0
cli.main = main
cli.entry()
"""


def loud(redirected: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", f'"$0" -c "$1" run {redirected}', sys.executable, LOUD],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=60,
    )


@pytest.mark.parametrize("redirected", ["| head -1", "> /dev/full", ">&-", "2>&1 >/dev/full"])
def test_a_command_ends_well_whoever_reads_it(redirected: str) -> None:
    done = loud(redirected)
    assert done.returncode == 0
    assert "done" in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    assert ("No space left" in done.stderr + done.stdout) is ("/dev/full" in redirected)


def test_a_terminal_that_knows_ascii_only_reads_words() -> None:
    done = loud("", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert done.stdout.startswith("epsilon 0\n")


def test_output_that_is_all_there_is_must_not_be_lost_in_silence() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*DP_FEDMED, "--help"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert "standard output was lost: No space left on device" in done.stderr
