"""One run on disk: its directory, ledger, checkpoints and report.

Called, this module is the front door's `dp_fedmed.run([...overrides])`, which has the same name.
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dp_fedmed.lazy import lazily

if TYPE_CHECKING:
    from dp_fedmed.run.observer import Observer as Observer
    from dp_fedmed.run.results import RunResult as RunResult
    from dp_fedmed.run.server_run import ServerRun as ServerRun

__getattr__, __dir__, __all__ = lazily(
    __name__,
    {"observer": ("Observer",), "results": ("RunResult",), "server_run": ("ServerRun",)},
)


class _Room(ModuleType):
    """A module that can be called: Python gives a package one attribute for both uses."""

    def __call__(self, *args: Any, **settings: Any) -> Any:
        return importlib.import_module("dp_fedmed.library").run(*args, **settings)


sys.modules[__name__].__class__ = _Room
