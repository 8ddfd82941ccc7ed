"""Shared fixtures: small configurations that train in a second or less."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
# Two processes with two threads each, on two cores, wait for each other most of the time.
os.environ["OMP_NUM_THREADS"] = "1"

import hydra
import pytest

from dp_fedmed.config import Config, compose
from dp_fedmed.config import composition as configuration
from tests.composition import remembering
from tests.runs.anomaly.runs import TINY

ROOT = Path(__file__).resolve().parents[1]
MEASURED = (
    *("tests/privacy", "tests/federation", "tests/planning", "tests/run", "tests/site"),
    *("tests/engines", "tests/runs", "tests/commands/test_plan.py"),
    *("dp_fedmed/privacy", "dp_fedmed/federation", "dp_fedmed/run", "dp_fedmed/site"),
)
UNMEASURED = "tests/runs/outside"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first, so that no core is left alone with the last one.

    Coverage, where it is asked for, is of privacy and federation, and measured by their own quick
    tests alone: the tracer would double the time of all others.
    """
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
    for item in items:
        own = any(item.path.is_relative_to(ROOT / folder) for folder in MEASURED)
        outside = item.path.is_relative_to(ROOT / UNMEASURED)
        if not own or outside or item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.no_cover)


@pytest.fixture(autouse=True, scope="session")
def remembered_composition() -> Iterator[None]:
    """Hydra composes the same words once."""
    patch = pytest.MonkeyPatch()
    patch.setattr(hydra, "compose", remembering(hydra.compose))
    yield
    patch.undo()


#: Tests give one list of settings to all styles; those of the refusal ask for it with `strict`.
REFUSE_WITHOUT_EFFECT = configuration.refuse_without_effect
configuration.refuse_without_effect = lambda runs, given: None


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings without effect are refused, as they are outside of tests."""
    monkeypatch.setattr(configuration, "refuse_without_effect", REFUSE_WITHOUT_EFFECT)


@pytest.fixture(autouse=True)
def heard_logger() -> Iterator[None]:
    """What a command does to logging in this process is undone, for the sake of later tests."""
    loggers = [logging.getLogger(name) for name in (None, "dp_fedmed", "flwr")]
    before = [(list(logger.handlers), logger.level) for logger in loggers]
    yield
    for logger, (handlers, level) in zip(loggers, before, strict=True):
        logger.handlers[:] = handlers
        logger.setLevel(level)
    logging.getLogger("dp_fedmed").propagate = True


def without_privacy_unless_given(words: Iterable[str]) -> list[str]:
    """The default experiment is private; a test that names no style means none."""
    return [] if any(word.startswith("privacy=") for word in words) else ["privacy=none"]


@pytest.fixture
def small(tmp_path: Path) -> Callable[..., Config]:
    """Makes a quick configuration; each call has its own run directory."""
    made = iter(range(1000))

    def make(*overrides: str) -> Config:
        return compose(
            [
                *without_privacy_unless_given(overrides),
                *("federation.num_clients=4", "federation.num_rounds=2", "engine.workers=1"),
                f"run_dir={tmp_path}/run{next(made)}",
                *overrides,
            ]
        )

    return make


@pytest.fixture
def tiny(tmp_path: Path) -> Callable[..., Config]:
    """Makes a quick anomaly configuration; each call has its own run directory."""
    made = iter(range(1000))

    def make(*words: str) -> Config:
        style = without_privacy_unless_given(words)
        return compose([*style, *TINY, f"run_dir={tmp_path}/run{next(made)}", *words])

    return make
