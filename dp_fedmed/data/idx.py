"""Fashion-MNIST from the four idx files: a local folder, Debian's package, or torchvision."""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np

from dp_fedmed.config import DataConfig
from dp_fedmed.data.records import Array, DataSet, Records
from dp_fedmed.data.splits import split_records
from dp_fedmed.errors import ConfigError

CLASS_NAMES = (
    *("T-shirt", "trouser", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
)
DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
CACHE_FOLDER = Path("~/.cache/dp_fedmed")


def load_fashion_mnist(config: DataConfig, seed: int) -> DataSet:
    """Fashion-MNIST: 60,000 + 10,000 grey images of 28×28 pixels, ten classes.

    ``data.path`` is a folder with the four idx files (.gz or not). Without it, Debian's package
    `dataset-fashion-mnist` is used where it is installed, else torchvision downloads the set.
    Validation records are cut from the official training part; the official test part stays whole.

    Raises:
        ConfigError: naming ``data.path`` and the file, if one is missing or broken.
    """
    folder = _folder(config.path)
    train, test = (_records(folder, part) for part in ("train", "t10k"))
    parts = split_records(
        train, val_fraction=config.val_fraction, test_fraction=0.0, seed=seed, test=test
    )
    return DataSet(*parts, num_classes=len(CLASS_NAMES), class_names=CLASS_NAMES)


def read_idx(file: Path, *, ndim: int) -> Array:
    """The uint8 array in an idx file, gzipped or not."""
    try:
        content = file.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"data.path: {file.name} cannot be read ({error})") from error
    header = 4 + 4 * ndim
    if len(content) < header or content[:4] != bytes((0, 0, 8, ndim)):
        raise ConfigError(f"data.path: {file.name} is not an idx file of {ndim}-D unsigned bytes")
    shape = struct.unpack(f">{ndim}I", content[4:header])
    expected, found = int(np.prod(shape, dtype=object)), len(content) - header
    if found != expected:
        raise ConfigError(
            f"data.path: {file.name} holds {found} bytes where its header promises {expected}: "
            "it is truncated or corrupt, download it again"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape).copy()


def _records(folder: Path, part: str) -> Records:
    images = read_idx(_find(folder, part, "images", 3), ndim=3)
    labels = read_idx(_find(folder, part, "labels", 1), ndim=1)
    if len(images) != len(labels):
        raise ConfigError(
            f"data.path: {part} has {len(images)} images and {len(labels)} labels; "
            "the files belong to different sets"
        )
    return Records(images[:, None], labels.astype(np.int64))


def _find(folder: Path, part: str, what: str, ndim: int) -> Path:
    stem = f"{part}-{what}"
    for name in (f"{stem}-idx{ndim}-ubyte", f"{stem}.idx{ndim}-ubyte", stem):
        for candidate in (folder / name, folder / f"{name}.gz"):
            if candidate.is_file():
                return candidate
    raise ConfigError(
        f"data.path: the folder {folder.name!r} has no {stem}-idx{ndim}-ubyte[.gz]; it must hold "
        "the four idx files of Fashion-MNIST"
    )


def _folder(path: str | None) -> Path:
    if path:
        folder = Path(path).expanduser()
        if not folder.is_dir():
            raise ConfigError(
                f"data.path={folder.name} is not a folder: give the one with the four idx files"
            )
        raw = folder / "FashionMNIST" / "raw"
        return raw if raw.is_dir() else folder
    if DEBIAN_FOLDER.is_dir():
        return DEBIAN_FOLDER
    from torchvision.datasets import FashionMNIST

    root = CACHE_FOLDER.expanduser()
    try:
        FashionMNIST(str(root), train=True, download=True)
    except (OSError, RuntimeError) as error:
        raise ConfigError(
            f"data.path is not set and Fashion-MNIST could not be downloaded "
            f"({type(error).__name__}): give the folder of its idx files (on Debian: apt-get "
            f"install dataset-fashion-mnist, then data.path={DEBIAN_FOLDER})"
        ) from error
    return root / "FashionMNIST" / "raw"
