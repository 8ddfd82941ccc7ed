"""Shared fixtures: small configurations that train in a second or less."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import pytest

from dp_fedmed.config import Config, compose
from tests.federation.anomaly_runs import TINY

ROOT = Path(__file__).resolve().parents[1]
MEASURED = (
    *("tests/privacy", "tests/federation", "tests/test_plan.py"),
    *("dp_fedmed/privacy", "dp_fedmed/federation"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first, so that no core is left alone with the last one.

    Coverage is of privacy and federation, and measured by their own quick tests alone: the tracer
    would double the time of all others.
    """
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
    for item in items:
        own = any(item.path.is_relative_to(ROOT / folder) for folder in MEASURED)
        if not own or item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.no_cover)


@pytest.fixture(autouse=True)
def heard_logger() -> Iterator[None]:
    """A command in this process keeps our log lines from the console, and so from later tests."""
    yield
    logging.getLogger("dp_fedmed").propagate = True


@pytest.fixture
def small(tmp_path: Path) -> Callable[..., Config]:
    """Makes a quick configuration; each call has its own run directory."""
    made = iter(range(1000))

    def make(*overrides: str) -> Config:
        return compose(
            [
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
        return compose([*TINY, f"run_dir={tmp_path}/run{next(made)}", *words])

    return make
