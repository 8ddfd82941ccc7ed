"""Runs that were interrupted, made once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dp_fedmed.config import compose
from dp_fedmed.launch import run_federation
from dp_fedmed.run.verify import LedgerView
from tests.runs.resume.runs import (
    SETTINGS,
    Stopper,
    model_bytes,
    resume,
)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A run of each style that was interrupted after two of its four rounds, made once."""
    made: dict[str, Path] = {}

    def make(style: str) -> Path:
        if style not in made:
            path = tmp_path_factory.mktemp("stopped") / style
            config = compose([f"privacy={style}", *SETTINGS, f"run_dir={path}"])
            result = run_federation(config, Stopper(2))
            assert result.stopped == "interrupted after round 2"
            made[style] = path
        return made[style]

    return make


@pytest.fixture
def copy(stopped: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """A copy of an interrupted run, to do as one likes with."""
    made = iter(range(1000))

    def make(style: str) -> Path:
        path = tmp_path / f"copy{next(made)}"
        shutil.copytree(stopped(style), path, symlinks=True)
        return path

    return make


@pytest.fixture(scope="module")
def references(
    stopped: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[bytes, dict[str, float]]]:
    """The final model and ε of the interrupted run when it simply goes on."""
    made: dict[str, tuple[bytes, dict[str, float]]] = {}

    def make(style: str) -> tuple[bytes, dict[str, float]]:
        if style not in made:
            path = tmp_path_factory.mktemp("reference") / style
            shutil.copytree(stopped(style), path, symlinks=True)
            assert resume(path).stopped == "completed"
            made[style] = (model_bytes(path), LedgerView(path).epsilons())
        return made[style]

    return make
