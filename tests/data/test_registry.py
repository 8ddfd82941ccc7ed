import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dp_fedmed.config import ConfigError, DataConfig, PartitionConfig, PartitionName, conf_dir
from dp_fedmed.data import LOADERS, DataSet, Records, load_data
from dp_fedmed.data.registry import find_loader


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
