import sys
import types

import numpy as np
import pytest

from dp_fedmed.config import DataConfig
from dp_fedmed.data import load_data
from dp_fedmed.errors import ConfigError


def arrays(shape=(28, 28), columns=1, dtype=np.uint8):
    rng = np.random.Generator(np.random.Philox(0))
    content = {}
    for split, n in (("train", 12), ("val", 4), ("test", 5)):
        content[f"{split}_images"] = rng.integers(0, 256, (n, *shape)).astype(dtype)
        content[f"{split}_labels"] = (np.arange(n * columns) % 2).reshape(n, columns)
    return content


def write(folder, content, name="pneumoniamnist.npz"):
    file = folder / name
    np.savez_compressed(file, **content)
    return file


def load(file):
    return load_data(DataConfig(name="medmnist", path=str(file)), seed=0)


def test_official_splits_are_kept(tmp_path):
    content = arrays()
    dataset = load(write(tmp_path, content))
    for split, part in dataset.parts().items():
        assert np.array_equal(part.x[:, 0], content[f"{split}_images"])
        assert np.array_equal(part.y, content[f"{split}_labels"][:, 0])
    assert dataset.input_shape == (1, 28, 28)
    assert dataset.class_names == ("normal", "pneumonia")


def test_colour_images_have_channels_first(tmp_path):
    content = arrays(shape=(28, 28, 3))
    dataset = load(write(tmp_path, content, "own.npz"))
    assert dataset.input_shape == (3, 28, 28)
    assert np.array_equal(dataset.train.x[0, 2], content["train_images"][0, :, :, 2])
    assert dataset.class_names == ("0", "1")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"test_labels": None}, "test_labels"),
        ({"val_labels": np.zeros((3, 1), np.int64)}, "4 images and 3 labels"),
        ({"val_labels": np.full((4, 1), -1)}, "negative"),
        ({"val_labels": np.zeros((4, 1))}, "float64"),
        ({"train_images": np.zeros((12, 28, 28), np.float32)}, "not uint8"),
        ({"train_images": np.zeros((12, 28, 28, 28), np.uint8)}, "3-D"),
        ({"train_images": np.zeros((12, 14, 14), np.uint8)}, "different shapes"),
        ({"train_labels": np.array([{}] * 12, dtype=object)}, "cannot be read"),
    ],
)
def test_a_file_of_another_layout_is_refused(tmp_path, change, says):
    content = {key: value for key, value in {**arrays(), **change}.items() if value is not None}
    with pytest.raises(ConfigError, match=says) as caught:
        load(write(tmp_path, content))
    assert "data.path=pneumoniamnist.npz" in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


def test_multi_label_sets_are_refused_with_the_reason(tmp_path):
    with pytest.raises(ConfigError, match="multi-label: train_labels has 14 columns"):
        load(write(tmp_path, arrays(columns=14), "chestmnist.npz"))


@pytest.mark.parametrize("keep", [0, 10, 1000, -30])
def test_a_truncated_file_is_one_clear_error(tmp_path, keep):
    file = write(tmp_path, arrays())
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ConfigError, match=r"data\.path=pneumoniamnist\.npz"):
        load(file)


def test_a_corrupt_member_is_one_clear_error(tmp_path):
    file = write(tmp_path, arrays())
    content = bytearray(file.read_bytes())
    content[200:600] = bytes(400)
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"data\.path=pneumoniamnist\.npz.*cannot be read"):
        load(file)


def test_a_lone_array_is_refused(tmp_path):
    file = tmp_path / "a.npz"
    with file.open("wb") as stream:
        np.save(stream, np.zeros(3))
    with pytest.raises(ConfigError, match="single array"):
        load(file)


@pytest.mark.parametrize("path", ["missing.npz", "/nowhere/x.npz", "Pneumonia"])
def test_a_missing_file_is_named(path):
    with pytest.raises(ConfigError, match=r"neither an existing \.npz file nor"):
        load(path)


def test_the_path_is_required():
    with pytest.raises(ConfigError, match=r"data\.path is not set"):
        load_data(DataConfig(name="medmnist"), seed=0)


def test_a_name_without_the_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "medmnist", None)
    with pytest.raises(ConfigError, match=r"pip install 'dp-fedmed\[medmnist\]'"):
        load("pneumoniamnist")


class FakeSet:
    available_sizes = (28, 64)
    root = ""

    def __init__(self, split, download, size):
        if not self.root:
            raise RuntimeError("no network")
        self.size_flag = "" if size == 28 else f"_{size}"


@pytest.fixture
def package(monkeypatch):
    """A stand-in with the surface of medmnist 3.0.2 that we use."""
    module = types.SimpleNamespace(
        INFO={"breastmnist": {"python_class": "BreastMNIST"}}, BreastMNIST=FakeSet
    )
    monkeypatch.setitem(sys.modules, "medmnist", module)
    return module


def test_a_name_goes_through_the_package(package, tmp_path, monkeypatch):
    monkeypatch.setattr(FakeSet, "root", str(tmp_path))
    write(tmp_path, arrays((64, 64)), "breastmnist_64.npz")
    assert load("breastmnist_64").input_shape == (1, 64, 64)


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("breastmnist", "could not be downloaded"),
        ("breastmnist_65", "comes in sizes"),
        ("brainmnist", "not a MedMNIST set"),
    ],
)
def test_what_the_package_cannot_give(name, says):
    with pytest.raises(ConfigError, match=says):
        load(name)


def test_the_real_pneumonia_set(shared_data):
    dataset = load(shared_data / "pneumoniamnist.npz")
    assert [len(part) for part in dataset.parts().values()] == [4708, 524, 624]


def test_a_test_label_that_nobody_trains_on_is_refused(tmp_path):
    content = arrays()
    content["test_labels"][0] = 7
    file = write(tmp_path, content, "own.npz")
    with pytest.raises(ConfigError, match=r"test split has records of class 7.*none above class 1"):
        load(file)
    at_site = load_data(DataConfig(name="medmnist", path=str(file)), seed=0, at_site=True)
    assert at_site.num_classes == 8, "a site trains on all of it"


def test_a_published_set_keeps_its_classes_where_some_have_no_record(tmp_path):
    content = arrays()
    assert load(write(tmp_path, content, "bloodmnist.npz")).num_classes == 8
