"""From `data.name` to a loaded data set: the built-in names, and anybody's own by import path."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from dp_fedmed.config import Config, DataConfig, PartitionConfig, TaskKind
from dp_fedmed.config.named_code import import_named
from dp_fedmed.config.own_data import refuse_unread_path
from dp_fedmed.data.records import DataSet
from dp_fedmed.errors import ConfigError

Loader = Callable[[DataConfig, int], DataSet]

# Import paths, so that naming one data set does not import the libraries of the others.
LOADERS: dict[str, str] = {
    "breast_cancer": "dp_fedmed.data.tabular.load_breast_cancer",
    "cells": "dp_fedmed.data.cells.load_cells",
    "diabetes": "dp_fedmed.data.tabular.load_diabetes",
    "digits": "dp_fedmed.data.tabular.load_digits",
    "fashion_mnist": "dp_fedmed.data.idx.load_fashion_mnist",
    "medmnist": "dp_fedmed.data.medmnist.load_medmnist",
    "mvtec_folder": "dp_fedmed.data.mvtec.load_mvtec_folder",
    "nnunet_folder": "dp_fedmed.data.nnunet.load_nnunet_folder",
    "textures": "dp_fedmed.data.textures.load_textures",
}


#: An audit's canaries are all of one class.
CANARIES = "dp_fedmed.evidence."
#: What a deployed site's folder may lack, because the server's has it.
SITE_LOADERS: dict[str, str] = {
    "medmnist": "dp_fedmed.data.medmnist.load_medmnist_site",
    "mvtec_folder": "dp_fedmed.data.mvtec.load_mvtec_site",
    "nnunet_folder": "dp_fedmed.data.nnunet.load_nnunet_site",
}


def load_data(config: DataConfig, *, seed: int, at_site: bool = False) -> DataSet:
    """The data set that ``data.name`` names, loaded once per process.

    Your own data set is a function that takes ``(config: DataConfig, seed: int)`` and returns a
    `DataSet`; put its import path in the config and leave the rest as it is::

        # my_package/my_module.py
        def load(config: DataConfig, seed: int) -> DataSet:
            scans = Records(x=..., y=..., site=hospitals, patient=patients)
            train, val, test = split_records(
                scans,
                val_fraction=config.val_fraction,
                test_fraction=config.test_fraction,
                seed=seed,
            )
            return DataSet(train, val, test, num_classes=2, class_names=("healthy", "ill"))

        dp-fedmed run allow_code=[my_package] data.name=my_package.my_module.load data.path=/scans

    Everything in the process shares the arrays: do not write into them (`Records.subset` copies).

    Args:
        config: the ``data`` section.
        seed: the run's seed; it decides the cut into parts, and what a generator draws.
        at_site: for a deployed client, whose folder may hold less than the server's.

    Raises:
        ConfigError: for an unknown name, a path that is not read, or one that cannot be.

    >>> dataset = load_data(DataConfig(name="breast_cancer"), seed=0)
    >>> dataset.input_shape, dataset.class_names
    ((30,), ('malignant', 'benign'))
    """
    refuse_unread_path(config)
    # How records are spread over clients changes nothing here: one load serves all partitions.
    relevant = dataclasses.replace(config, partition=PartitionConfig(), client_val_fraction=0.0)
    return _load(relevant, seed, at_site)


@lru_cache(maxsize=4)
def _load(config: DataConfig, seed: int, at_site: bool) -> DataSet:
    loader = find_loader(SITE_LOADERS.get(config.name, config.name) if at_site else config.name)
    try:
        dataset = loader(config, seed)
    except ConfigError as error:
        error.path = config.path  # where the person is who may see it
        raise
    except Exception as error:  # the user's own code: whatever it raises is named
        raise ConfigError(
            f"data.name={config.name} failed with {type(error).__name__}: {error}"
        ) from error
    if not isinstance(dataset, DataSet):
        raise ConfigError(
            f"data.name={config.name} returned {type(dataset).__name__}: "
            "return a dp_fedmed.data.DataSet"
        )
    return dataset


def find_loader(name: str) -> Loader:
    """The loader function for a built-in name or a dotted import path."""
    if name not in LOADERS and "." not in name:
        close = difflib.get_close_matches(name, LOADERS, n=2, cutoff=0.5)
        nearest = f" (did you mean {' or '.join(close)}?)" if close else ""
        raise ConfigError(
            f"data.name={name} is not a data set{nearest}: choose from {', '.join(LOADERS)}, "
            "or give the import path of your own, my_package.my_module.load"
        )
    try:
        return import_named("data.name", LOADERS.get(name, name))
    except ConfigError:
        raise
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"data.name={name} cannot be imported ({error}): give package.module.function of a "
            "function (config, seed) -> DataSet that Python can import"
        ) from error


def refuse_other_kind(config: Config, data: DataSet) -> None:
    """Class ids of two classes or more, masks or numbers, as the task learns from.

    Raises:
        ConfigError: if the data are not of the kind that the task learns from.
    """
    kind = config.task.kind
    if kind is TaskKind.anomaly and data.is_segmentation and data.train.y.any():
        raise ConfigError(
            f"task.kind=anomaly learns from normal images, but data.name={config.data.name} has "
            "marked ones to train on: choose another task= or data.name="
        )
    found = "one class per record"
    fits = kind is TaskKind.classification
    if data.is_regression:
        found, fits = "numbers", kind is TaskKind.regression
    elif data.is_segmentation:
        found, fits = "masks", kind in (TaskKind.segmentation, TaskKind.anomaly)
    if not fits:
        raise ConfigError(
            f"task.kind={kind} does not fit data.name={config.data.name}, whose labels "
            f"are {found}: choose another data.name=, or another task= (task=nnunet_folder learns "
            "from masks, task=medmnist from classes)"
        )
    if kind is TaskKind.classification and not config.data.name.startswith(CANARIES):
        held = np.unique(data.train.y)
        if len(held) < 2:
            raise ConfigError(
                f"task.kind=classification tells classes apart, but all training records of "
                f"data.name={config.data.name} are of class {held[0]} "
                f"({data.class_names[held[0]]}): give records of two classes or more, or choose an "
                "anomaly task (task=mvtec_folder), which learns from one"
            )
