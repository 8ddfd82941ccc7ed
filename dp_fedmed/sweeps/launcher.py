"""Makes our launcher and sweeper known to Hydra, which makes instances of them by their name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from dp_fedmed.config import Config

NAME = "pool"
PLUGINS = Path(__file__).resolve().parent.parent / "plugins"


@dataclass
class Invocation:
    """One call of `dp-fedmed run`, for the launcher to know.

    Attributes:
        command: what the user typed.
        settings: makes a job's configuration of Hydra's tree, its overrides and its run directory.
        exit_code: of the sweep, once it has ended.
        end: called when everything is over.
    """

    command: Sequence[str]
    settings: Callable[[Any, Sequence[str], str], Config]
    exit_code: int = 0
    end: Callable[[], None] = lambda: None


_current: list[Invocation] = []


def current() -> Invocation:
    """The call that is being answered."""
    return _current[-1]


def register(invocation: Invocation) -> None:
    """Register both; safe to call twice."""
    from hydra.core.config_store import ConfigStore
    from hydra.core.plugins import Plugins

    if str(PLUGINS) not in sys.path:
        sys.path.append(str(PLUGINS))
    module = import_module("hydra_plugins.dp_fedmed_launcher")
    Plugins.instance().register(module.PoolLauncher)
    Plugins.instance().register(module.PoolSweeper)
    ConfigStore.instance().store(group="hydra/launcher", name=NAME, node=module.PoolLauncherConf)
    ConfigStore.instance().store(group="hydra/sweeper", name=NAME, node=module.PoolSweeperConf)
    _current[:] = [invocation]
