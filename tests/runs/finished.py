"""Small runs and a small sweep, each made once, and copies of them to break."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dp_fedmed.config import compose
from dp_fedmed.launch import run_federation
from dp_fedmed.run.results import RunResult
from dp_fedmed.sweeps.results import result_row

SETTINGS = [
    *("federation.num_clients=4", "federation.num_rounds=3", "engine.workers=1"),
    *("model._target_=dp_fedmed.models.MLP", "model.args.hidden=[4]", "training.local_steps=2"),
    *("privacy.sample.grad_mode=hooks", "federation.evaluate_every=1"),
]
CELLS = ["task=cells", "data.num_records=24", "data.image_size=16", "federation.num_clients=2"]
WORDS = {
    "none": ["privacy=none"],
    "sample": ["privacy=sample", "data.partition.name=dirichlet"],
    "hybrid": ["privacy=hybrid", "federation.num_clients=8", "federation.sample_rate=0.5"],
    "public": ["privacy=sample", "privacy.noise_seed=7"],
    "cells": ["privacy=none", *CELLS, "federation.num_rounds=1", "engine.workers=1"],
}


def make_run(path: Path, words: list[str]) -> RunResult:
    common = [] if "task=cells" in words else SETTINGS
    return run_federation(compose([*common, *words, f"run_dir={path}"]))


@pytest.fixture(scope="session")
def made_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A finished run of each kind; not to be changed."""
    made: dict[str, Path] = {}

    def make(kind: str) -> Path:
        if kind not in made:
            made[kind] = tmp_path_factory.mktemp("runs") / f"{kind}_run"
            assert make_run(made[kind], WORDS[kind]).stopped == "completed"
        return made[kind]

    return make


@pytest.fixture
def a_run(made_run: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """A copy of one, to do as one likes with."""

    def copy(kind: str) -> Path:
        path = tmp_path / f"{kind}_run"
        shutil.copytree(made_run(kind), path, symlinks=True)
        return path

    return copy


@pytest.fixture(scope="session")
def made_sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ε and no privacy, two seeds each, and a job that failed."""
    path = tmp_path_factory.mktemp("sweeps") / "a_sweep"
    path.mkdir()
    (path / "sweep.yaml").write_text(
        json.dumps(
            {
                "schema": 1,
                "created": "2026-01-02T03:04:05+00:00",
                "version": "0.1.0",
                "command": ["dp-fedmed", "run", "--multirun", "run_dir=/home/ann/studies/a_sweep"],
                "swept": {"privacy.sample.target_epsilon": [1, 4], "seed": [0, 1]},
                "jobs": 7,
            }
        )
    )
    rows = []
    for job, (style, epsilon, seed) in enumerate(
        (style, epsilon, seed)
        for style, epsilon in (("none", None), ("sample", 1), ("sample", 4))
        for seed in (0, 1)
    ):
        run_dir = path / f"{job:03d}"
        words = [f"privacy={style}", f"seed={seed}", "federation.num_rounds=2"]
        swept: dict[str, Any] = {"privacy": style, "seed": seed}
        if epsilon is not None:
            words.append(f"privacy.sample.target_epsilon={epsilon}")
            swept["privacy.sample.target_epsilon"] = epsilon
        make_run(run_dir, words)
        rows.append(result_row(job, run_dir, swept, seconds=1.5))
    failed = {"job": 6, "run_dir": "006", "status": "failed", "style": "sample", "seed": 0}
    message = "privacy.sample.target_epsilon=0 <b>cannot</b> be met; see /home/ann/studies/run.log"
    rows.append({**failed, "message": message, "task": "breast_cancer", "overrides": {"seed": 0}})
    (path / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def a_sweep(made_sweep: Path, tmp_path: Path) -> Path:
    """A copy of the sweep."""
    path = tmp_path / "a_sweep"
    shutil.copytree(made_sweep, path, symlinks=True)
    return path
