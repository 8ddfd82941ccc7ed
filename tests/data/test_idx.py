import gzip
import struct

import numpy as np
import pytest

from dp_fedmed.config import DataConfig
from dp_fedmed.data import idx, load_data
from dp_fedmed.errors import ConfigError


def encode(array):
    header = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(np.uint8).tobytes()


def write(folder, *, zipped=True, pattern="{part}-{what}-idx{ndim}-ubyte"):
    rng = np.random.Generator(np.random.Philox(0))
    files = {}
    folder.mkdir(parents=True, exist_ok=True)
    for part, n in (("train", 40), ("t10k", 10)):
        for what, array in (
            ("images", rng.integers(0, 256, (n, 28, 28))),
            ("labels", np.arange(n) % 10),
        ):
            name = pattern.format(part=part, what=what, ndim=array.ndim) + ".gz" * zipped
            content = encode(array)
            (folder / name).write_bytes(gzip.compress(content) if zipped else content)
            files[part, what] = array
    return files


def load(folder, **options):
    path = None if folder is None else str(folder)
    return load_data(DataConfig(name="fashion_mnist", path=path, **options), seed=0)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(
    "pattern", ["{part}-{what}-idx{ndim}-ubyte", "{part}-{what}.idx{ndim}-ubyte"]
)
def test_four_idx_files_are_a_data_set(tmp_path, zipped, pattern):
    files = write(tmp_path, zipped=zipped, pattern=pattern)
    dataset = load(tmp_path, val_fraction=0.25)
    assert [len(part) for part in dataset.parts().values()] == [30, 10, 10]
    assert dataset.input_shape == (1, 28, 28)
    assert np.array_equal(dataset.test.x[:, 0], files["t10k", "images"])
    assert dataset.test.x.flags.writeable
    pixels = np.sort(np.concatenate([dataset.train.x, dataset.val.x]).sum(axis=(1, 2, 3)))
    assert np.array_equal(pixels, np.sort(files["train", "images"].sum(axis=(1, 2))))
    assert np.bincount(dataset.val.y).tolist() == [1] * 10


def test_torchvisions_folder_works_too(tmp_path):
    write(tmp_path / "FashionMNIST" / "raw")
    assert len(load(tmp_path).test) == 10


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda content: content[: len(content) // 2], "cannot be read"),
        (lambda content: b"hello", "not an idx file"),
        (lambda content: b"", "not an idx file"),
        (lambda content: gzip.decompress(content)[:-7], "promises"),
        (lambda content: bytes((0, 0, 8, 3)) + b"\xff" * 12, "promises"),
        (lambda content: encode(np.zeros(5)), "not an idx file of 3-D"),
        (lambda content: encode(np.zeros((3, 28, 28))), "3 images and 10 labels"),
    ],
)
def test_a_broken_file_is_named(tmp_path, damage, says):
    write(tmp_path)
    file = tmp_path / "t10k-images-idx3-ubyte.gz"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ConfigError, match=says) as caught:
        load(tmp_path)
    assert "data.path" in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    write(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(ConfigError, match="no train-labels-idx1-ubyte"):
        load(tmp_path)
    with pytest.raises(ConfigError, match="is not a folder"):
        load(tmp_path / "nowhere")


def test_without_a_network_the_remedy_is_named(tmp_path, monkeypatch):
    import torchvision.datasets

    def offline(*args, **kwargs):
        raise RuntimeError("Error downloading")

    monkeypatch.setattr(torchvision.datasets, "FashionMNIST", offline)
    monkeypatch.setattr(idx, "DEBIAN_FOLDER", tmp_path / "absent")
    with pytest.raises(ConfigError, match=r"data\.path is not set.*dataset-fashion-mnist"):
        load(None, val_fraction=0.11)


def test_debians_package_is_found(tmp_path, monkeypatch):
    write(tmp_path)
    monkeypatch.setattr(idx, "DEBIAN_FOLDER", tmp_path)
    assert len(load(None, val_fraction=0.12).test) == 10
