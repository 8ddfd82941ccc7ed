"""One Ray for a sweep: its address is known while it lasts, and its process ends with it."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import pytest

from dp_fedmed.federation.flower_compat import RAY_ADDRESS, RAY_LOOPBACK
from dp_fedmed.sweeps import ray_cluster as module
from dp_fedmed.sweeps.ray_cluster import ray_cluster

STAND_IN = f"""
import os, sys
print("127.0.0.1:" + sys.argv[1] + os.environ[{next(iter(RAY_LOOPBACK))!r}][:0], flush=True)
sys.stdin.read()
"""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[str]]:
    """Processes that were started; instead of Ray, one that tells an address and waits."""
    processes: list[subprocess.Popen[str]] = []
    popen = subprocess.Popen

    def start(*args: Any, **settings: Any) -> subprocess.Popen[str]:
        processes.append(popen(*args, **settings))
        return processes[-1]

    monkeypatch.setattr(module, "_KEEP", STAND_IN)
    monkeypatch.setattr(module.subprocess, "Popen", start)
    monkeypatch.delenv(RAY_ADDRESS, raising=False)
    return processes


def test_runs_find_it_while_it_lasts(started: list[subprocess.Popen[str]]) -> None:
    with ray_cluster(3):
        assert os.environ[RAY_ADDRESS] == "127.0.0.1:3"
        assert started[0].poll() is None
    assert RAY_ADDRESS not in os.environ
    assert started[0].returncode == 0


def test_it_ends_with_a_sweep_that_fails(started: list[subprocess.Popen[str]]) -> None:
    with pytest.raises(KeyError), ray_cluster(1):
        raise KeyError("a bug")
    assert RAY_ADDRESS not in os.environ
    assert started[0].returncode == 0


def test_one_that_does_not_end_is_killed(
    started: list[subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_KEEP", f"{STAND_IN}\nimport time\ntime.sleep(60)\n")
    monkeypatch.setattr(module, "SECONDS_TO_STOP", 0.1)
    with ray_cluster(1):
        pass
    assert started[0].returncode == -9


def test_without_ray_each_run_says_itself_what_is_wrong(
    started: list[subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_KEEP", "raise ImportError('ray')")
    with ray_cluster(1):
        assert RAY_ADDRESS not in os.environ
    assert started[0].returncode == 1
