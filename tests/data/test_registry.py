import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dp_fedmed.config import DataConfig, PartitionConfig, PartitionName, compose, conf_dir
from dp_fedmed.data import LOADERS, DataSet, Records, load_data
from dp_fedmed.data.registry import find_loader, refuse_other_kind
from dp_fedmed.errors import ConfigError


def tiny(config: DataConfig, seed: int) -> DataSet:
    part = Records(np.zeros((4, 2), np.float32), np.array([0, 1, 0, 1]))
    return DataSet(part, part, part, num_classes=2, class_names=("no", "yes"))


def not_a_data_set(config: DataConfig, seed: int) -> str:
    return "oops"


@pytest.fixture
def importable(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


@pytest.mark.parametrize("name", LOADERS)
def test_every_name_has_a_loader_and_a_task(name):
    assert callable(find_loader(name))
    assert (conf_dir() / "task" / f"{name}.yaml").is_file()


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(ConfigError, match=r"data\.name=brest_cancer.*did you mean breast_cancer"):
        load_data(DataConfig(name="brest_cancer"), seed=0)


@pytest.mark.usefixtures("importable")
def test_ones_own_data_set_is_an_import_path():
    assert load_data(DataConfig(name="test_registry.tiny"), seed=0).class_names == ("no", "yes")


@pytest.mark.usefixtures("importable")
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("no_such_package.load", "cannot be imported"),
        ("test_registry.no_such_function", "cannot be imported"),
        (".tiny", "cannot be imported"),
        ("test_registry.__file__", "not a class or function"),
        ("test_registry.not_a_data_set", "returned str"),
    ],
)
def test_a_wrong_import_path_says_what_is_expected(name, says):
    with pytest.raises(ConfigError, match=says) as caught:
        load_data(DataConfig(name=name), seed=0)
    assert f"data.name={name}" in str(caught.value)


def test_one_load_serves_all_partitions():
    config = DataConfig(name="digits")
    other = dataclasses.replace(
        config, partition=PartitionConfig(name=PartitionName.dirichlet), client_val_fraction=0.5
    )
    assert load_data(config, seed=0) is load_data(other, seed=0)
    assert load_data(config, seed=0) is not load_data(config, seed=1)


def test_importing_the_package_is_cheap():
    code = (
        "import sys, dp_fedmed.data\n"
        "heavy = {'torch', 'sklearn', 'datasets', 'flwr_datasets', 'PIL', 'matplotlib', 'scipy'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    root = Path(__file__).resolve().parents[2]
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root
    )
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize("name", ["breast_cancer", "digits", "cells", "textures"])
def test_a_path_that_nobody_reads_is_refused(name):
    """As a setting, and as a deployed site's data-path, which is not validated with the rest."""
    with pytest.raises(ConfigError, match=rf"data\.path=/mine.*data\.name={name}.*task=medmnist"):
        compose([f"task={name}", "data.path=/mine"])
    with pytest.raises(ConfigError, match=r"data\.path=/mine would not be read"):
        load_data(DataConfig(name=name, path="/mine"), seed=0, at_site=True)


def test_one_class_is_nothing_to_tell_apart():
    data = tiny(DataConfig(), 0)
    refuse_other_kind(compose(["privacy=none"]), data)
    same = dataclasses.replace(data, train=data.train.subset(np.array([1, 3, 1])))
    with pytest.raises(ConfigError, match=r"classification.*data\.name=.*of class 1 \(yes\)"):
        refuse_other_kind(compose(["privacy=none"]), same)
