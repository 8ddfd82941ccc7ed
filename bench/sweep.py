"""A sweep of 15 runs on `digits` with our pool, against one after another, and against joblib.

Only a quiet machine tells: where others compute too, two processes may get no more than one does.
"""

from __future__ import annotations

import itertools
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.rows import Row

REPEATS = 3
CORES = 2
SETTINGS = ("task=digits", "privacy=sample", "privacy.sample.grad_mode=hooks")
ONE = "engine.workers=1"
COMMAND = (sys.executable, "-c", "from dp_fedmed.cli import entry; entry()")
EPSILONS, SEEDS = ("0.5", "1", "2", "4", "8"), ("0", "1", "2")
JOBLIB = """
import sys
from joblib import Parallel, delayed

def job(words):
    from dp_fedmed.config import compose
    from dp_fedmed.launch import run_federation
    from dp_fedmed.reporting.run_log import quiet_console
    quiet_console()
    run_federation(compose(words.split()))

Parallel(n_jobs=2)(delayed(job)(words) for words in sys.argv[1:])
"""


def pool(folder: str) -> list[str]:
    """Our launcher."""
    return [*_sweep(folder), f"hydra.launcher.n_jobs={CORES}"]


def one_after_another(folder: str) -> list[str]:
    """Hydra's own launcher: the same runs in one process, so that imports are paid once too."""
    return [*_sweep(folder), "hydra/launcher=basic", ONE]


def by_hand(folder: str) -> list[list[str]]:
    """What somebody without a sweep would type."""
    return [[*COMMAND, "run", *job] for job in _jobs(folder)]


def joblib(folder: str) -> list[str]:
    """What Hydra's joblib launcher does: processes that import everything themselves."""
    return [sys.executable, "-c", JOBLIB, *(" ".join(job) for job in _jobs(folder))]


def _jobs(folder: str) -> list[list[str]]:
    return [
        [
            *(*SETTINGS, ONE, f"privacy.sample.target_epsilon={epsilon}", f"seed={seed}"),
            f"run_dir={folder}/{number}",
        ]
        for number, (epsilon, seed) in enumerate(itertools.product(EPSILONS, SEEDS))
    ]


def _sweep(folder: str) -> list[str]:
    return [
        *(*COMMAND, "run", "--multirun", *SETTINGS, f"run_dir={folder}/sweep"),
        f"privacy.sample.target_epsilon={','.join(EPSILONS)}",
        f"seed={','.join(SEEDS)}",
    ]


def measured(command: list[str]) -> tuple[float, float]:
    """(seconds from the shell and back, seconds of computing in all its processes)."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    subprocess.run(
        command,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=Path(__file__).parent.parent,
    )
    seconds = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def rows() -> list[Row]:
    ways = {"pool": pool, "one": one_after_another, "joblib": joblib}
    best: dict[str, tuple[float, float]] = {}
    for _ in range(REPEATS):
        for name, way in ways.items():
            with tempfile.TemporaryDirectory() as folder:
                found = measured(way(folder))
            best[name] = min(best.get(name, found), found)
    with tempfile.TemporaryDirectory() as folder:
        commands = sum(measured(command)[0] for command in by_hand(folder))
    return [
        Row("15 runs on digits, a command each", commands, None, "s"),
        Row("15 runs on digits, one after another in one process", best["one"][0], None, "s"),
        Row("the same on a pool of 2 processes", best["pool"][0], None, "s"),
        Row("the same on joblib's 2 processes", best["joblib"][0], None, "s"),
        Row("pool / a command each", best["pool"][0] / commands, 0.6, "×"),
        Row("pool / one after another", best["pool"][0] / best["one"][0], 0.6, "×"),
        Row("pool / joblib", best["pool"][0] / best["joblib"][0], 1.0, "×"),
        Row("computing: pool / one after another", best["pool"][1] / best["one"][1], 1.2, "×"),
    ]
