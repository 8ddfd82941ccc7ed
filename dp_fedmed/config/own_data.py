"""Names the task and chooses the network for data that are not the task's own.

Both are resolvers of the configuration tree: everything that reads a configuration agrees.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dp_fedmed.config.schema import Config, DataConfig
from dp_fedmed.errors import ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig

#: Formats: what is read is named by its file or folder.
FORMATS = ("medmnist", "mvtec_folder", "nnunet_folder")
#: Data sets that no file is read for, and what they are instead.
WITHOUT_PATH = {
    **dict.fromkeys(("breast_cancer", "diabetes", "digits"), "embedded"),
    **dict.fromkeys(("cells", "textures"), "generated"),
}
_LOADS = ("load_data", "load_dataset", "get_data")
#: Function names that do not describe the data; the name of their module is used instead.
_VERBS = ("load", "read", "make", "main", "data", "dataset", *_LOADS)


def task_name(task: str, *, _root_: DictConfig) -> str:
    """The task's name: that of the data where they are not the task's own.

    >>> from omegaconf import OmegaConf
    >>> task_name("digits", _root_=OmegaConf.create({"data": {"name": "my.study.load"}}))
    'study'
    >>> scans = {"data": {"name": "medmnist", "path": "/data/chest_2024.npz"}}
    >>> task_name("medmnist", _root_=OmegaConf.create(scans))
    'chest_2024'
    """
    data = _root_.get("data") or {}
    name, path = str(data.get("name", task)), data.get("path")
    words = [word for word in name.split(".") if word not in _VERBS]
    called = words[-1].removeprefix("load_") if words else task
    if name in FORMATS and path:
        called = Path(str(path)).name.removesuffix(".npz")
    return re.sub(r"[^\w.-]+", "_", called) or task


def network(task: str, target: str, *, _root_: DictConfig) -> str:
    """The task's network; for other data than its own, one that fits their shape.

    >>> from omegaconf import OmegaConf
    >>> tree = OmegaConf.create({"data": {"name": "my.load"}, "task": {"kind": "classification"}})
    >>> network("breast_cancer", "dp_fedmed.models.MLP", _root_=tree)
    'dp_fedmed.models.small_network'
    """
    if (_root_.get("data") or {}).get("name", task) == task:
        return target
    is_mask = str((_root_.get("task") or {}).get("kind")) == "segmentation"
    return f"dp_fedmed.models.{'UNet' if is_mask else 'small_network'}"


def refuse_unread_path(data: DataConfig) -> None:
    """Refuses a data.path that would not be read: results would be about other records."""
    if data.path is not None and data.name in WITHOUT_PATH:
        raise ConfigError(
            f"data.path={data.path} would not be read: data.name={data.name} is "
            f"{WITHOUT_PATH[data.name]}. Use task=medmnist for an .npz file, task=nnunet_folder or "
            "task=mvtec_folder for a folder of images, data.name=my_package.my_module.load for "
            "anything else, or leave data.path out"
        )


def with_absolute_data_path(config: Config) -> Config:
    """A data.path relative to the caller's folder means the same on every engine."""
    path = config.data.path
    if path is None or not Path(path).exists():
        return config  # not a path from here: a name, or the loader says what is missing
    return config.replace(data=replace(config.data, path=str(Path(path).resolve())))
