"""Our Hydra launcher: how many jobs at a time, and whether they share one Ray."""

from __future__ import annotations

from contextlib import nullcontext
from types import ModuleType
from typing import Any

import pytest
from hydra.core.plugins import Plugins
from omegaconf import OmegaConf

from dp_fedmed.config import EngineName
from dp_fedmed.errors import ConfigError
from dp_fedmed.sweeps import launcher, ray_cluster, running


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    Plugins.instance()  # looks for plugins, and so loads Hydra's sweeper anew: before ours
    monkeypatch.syspath_prepend(str(launcher.PLUGINS))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    from hydra_plugins import dp_fedmed_launcher

    found: ModuleType = dp_fedmed_launcher
    return found


def launcher_of(plugin: ModuleType, n_jobs: int | None = None, **engine: Any) -> Any:
    made = plugin.PoolLauncher(n_jobs)
    held = {"name": EngineName.local, "address": None, "workers": 2, **engine}
    made.config = OmegaConf.create(
        {"engine": held, "training": {"threads": 1, "device": "cpu"}}, flags={"allow_objects": True}
    )
    return made


def test_settings_name_the_classes(plugin: ModuleType) -> None:
    for settings, name in (
        (plugin.PoolLauncherConf(), "PoolLauncher"),
        (plugin.PoolSweeperConf(), "PoolSweeper"),
    ):
        module, made = settings._target_.rsplit(".", 1)
        assert (module, made) == (plugin.__name__, name)
        assert hasattr(plugin, made)


def test_jobs_at_a_time_are_as_given_or_as_many_as_fit(
    plugin: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "jobs_at_a_time", lambda **given: given["workers"] + 5)
    assert launcher_of(plugin)._at_a_time() == 7
    assert launcher_of(plugin, 3)._at_a_time() == 3
    assert launcher_of(plugin, name=EngineName.ray)._at_a_time() == 1, "Ray shares cores itself"
    with pytest.raises(ConfigError, match="n_jobs=0 is out of range"):
        launcher_of(plugin, 0)._at_a_time()


def test_one_ray_is_started_only_where_there_is_none(
    plugin: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []

    def cluster(cpus: int) -> Any:
        started.append(cpus)
        return nullcontext()

    monkeypatch.setattr(ray_cluster, "ray_cluster", cluster)
    launcher_of(plugin)._engine()
    launcher_of(plugin, name=EngineName.ray, address="10.0.0.1:6379")._engine()
    assert started == []
    launcher_of(plugin, name=EngineName.ray)._engine()
    assert started == [2]
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    launcher_of(plugin, name=EngineName.ray)._engine()
    assert started == [2]
