"""Shared fixtures: small configurations that train in a second or less."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import pytest

from dp_fedmed.config import Config, compose


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
