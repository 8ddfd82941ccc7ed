"""Everything that dp_fedmed uses of Hydra's private modules; checked with hydra-core 1.3.

OmegaConf is used through its public names only.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper as BasicSweeper
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeperConf as BasicSweeperConf


def __getattr__(name: str) -> Any:
    """Hydra's search for plugins loads its sweeper anew: the class is asked for when it is used."""
    if name not in ("BasicSweeper", "BasicSweeperConf"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("hydra._internal.core_plugins.basic_sweeper"), name)
