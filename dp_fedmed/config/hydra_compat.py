"""Everything that dp_fedmed uses of Hydra's private modules; checked with hydra-core 1.3.

OmegaConf is used through its public names only.
"""

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper, BasicSweeperConf

__all__ = ["BasicSweeper", "BasicSweeperConf"]
