"""Our launcher and sweeper are known to Hydra."""

from __future__ import annotations

import sys

import pytest
from hydra.core.config_store import ConfigStore

from dp_fedmed.config import compose
from dp_fedmed.sweeps import launcher
from dp_fedmed.sweeps.launcher import NAME, Invocation, current, register


def test_both_are_registered_and_the_last_call_is_the_current_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(launcher, "_current", [])
    calls = [Invocation(["run", word], lambda *_: compose()) for word in ("seed=0,1", "seed=2,3")]
    for call in calls:
        register(call)
        assert current() is call
    assert sys.path.count(str(launcher.PLUGINS)) == 1
    for group in ("launcher", "sweeper"):
        assert f"{NAME}.yaml" in ConfigStore.instance().list(f"hydra/{group}")
