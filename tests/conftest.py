"""Shared fixtures: small configurations that train in a second or less."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import pytest

from dp_fedmed.config import Config, compose
from tests.federation.anomaly_runs import TINY


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first, so that no core is left alone with the last one.

    Slow tests repeat in whole runs what quick ones reach in parts, so coverage is measured without
    them: its tracer would double their time.
    """
    slow = [item for item in items if item.get_closest_marker("slow")]
    files = {item.path for item in slow}
    for item in slow:
        item.add_marker(pytest.mark.no_cover)
    items.sort(key=lambda item: item.path not in files)


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


@pytest.fixture
def without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs draw no curves and no partitions, which takes longer than a tiny run."""
    from dp_fedmed.federation import server_run

    monkeypatch.setattr(server_run, "plot_metrics", lambda *_: None)
    monkeypatch.setattr(server_run.ServerRun, "_describe_clients", lambda *_: None)
