"""MedMNIST sets (Yang et al. 2023): any official .npz by path, or by name through the package.

The official train/val/test split is kept; nothing is ever unpickled.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from pathlib import Path

import numpy as np

from dp_fedmed.config import DataConfig
from dp_fedmed.data.records import Array, DataSet, Records
from dp_fedmed.errors import ConfigError

_SPLITS = ("train", "val", "test")
_ORGANS = "bladder,left femur,right femur,heart,left kidney,right kidney,liver,left lung,right lung"
# Names for reports, from the package's INFO; a file that is not listed has numbered classes.
_CLASS_NAMES = {
    "bloodmnist": "basophil,eosinophil,erythroblast,immature granulocyte,lymphocyte,monocyte,"
    "neutrophil,platelet",
    "breastmnist": "malignant,normal or benign",
    "dermamnist": "actinic keratosis,basal cell carcinoma,benign keratosis,dermatofibroma,"
    "melanoma,melanocytic nevus,vascular lesion",
    "octmnist": "choroidal neovascularization,diabetic macular edema,drusen,normal",
    "organamnist": f"{_ORGANS},pancreas,spleen",
    "organcmnist": f"{_ORGANS},pancreas,spleen",
    "organsmnist": f"{_ORGANS},pancreas,spleen",
    "pathmnist": "adipose,background,debris,lymphocytes,mucus,smooth muscle,normal mucosa,stroma,"
    "adenocarcinoma",
    "pneumoniamnist": "normal,pneumonia",
}


def load_medmnist(config: DataConfig, seed: int) -> DataSet:
    """A MedMNIST set with its official split; ``data.path`` is an .npz file or a name.

    A name such as ``pneumoniamnist`` (28 px) or ``pneumoniamnist_64`` is fetched by the `medmnist`
    package. ``val_fraction``, ``test_fraction`` and the seed are not used. The classes are those of
    the training records.

    Raises:
        ConfigError: naming ``data.path``, for a file that is missing, broken, 3-D or multi-label.
    """
    return _load(config, classes_of=("train",))


def load_medmnist_site(config: DataConfig, seed: int) -> DataSet:
    """The same at a deployed site, which trains on all parts: their classes are all its own."""
    return _load(config, classes_of=_SPLITS)


def _load(config: DataConfig, *, classes_of: tuple[str, ...]) -> DataSet:
    if not config.path:
        raise ConfigError(
            "data.path is not set: data.name=medmnist needs an .npz file "
            "(data.path=/data/pneumoniamnist.npz) or a name (data.path=pneumoniamnist)"
        )
    file = Path(config.path).expanduser()
    if not file.is_file():
        file = _fetch(config.path)
    images, labels = _read(file)
    shapes = {part.shape[1:] for part in images.values()}
    if len(shapes) > 1:
        raise _broken(file, f"its splits have images of different shapes, {sorted(shapes)}")
    published = _CLASS_NAMES.get(file.stem.split("_")[0])
    names = tuple(published.split(",")) if published else ()
    num_classes = max(int(labels[split].max(initial=0)) for split in classes_of) + 1
    if len(names) < num_classes:
        names = tuple(str(number) for number in range(num_classes))
    for split, own in labels.items():
        if own.max() >= len(names):
            raise _broken(
                file,
                f"its {split} split has records of class {own.max()}, and its train split none "
                f"above class {len(names) - 1}",
            )
    train, val, test = (Records(images[split], labels[split]) for split in _SPLITS)
    return DataSet(train, val, test, num_classes=len(names), class_names=names)


def _read(file: Path) -> tuple[dict[str, Array], dict[str, Array]]:
    """Checked images (n, C, H, W) and labels (n,) of each split."""
    images, labels = {}, {}
    try:
        archive = np.load(file, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise _broken(file, "it is a single array, not an .npz archive")
        with archive:
            for split in _SPLITS:
                images[split] = _images(file, split, archive[f"{split}_images"])
                labels[split] = _labels(file, split, archive[f"{split}_labels"])
    except ConfigError:
        raise
    except KeyError as error:
        raise _broken(file, f"it lacks an array of MedMNIST's layout, {error.args[0]}") from error
    except (OSError, ValueError, EOFError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise _broken(file, f"it cannot be read ({error})") from error
    for split in _SPLITS:
        if len(images[split]) != len(labels[split]) or len(labels[split]) == 0:
            counts = f"{len(images[split])} images and {len(labels[split])} labels"
            raise _broken(file, f"its {split} split has {counts}")
    return images, labels


def _images(file: Path, split: str, array: Array) -> Array:
    if array.dtype != np.uint8:
        raise _broken(file, f"{split}_images is {array.dtype}, not uint8")
    if array.ndim == 3:
        return array[:, None]
    if array.ndim == 4 and array.shape[3] == 3:
        return np.ascontiguousarray(array.transpose(0, 3, 1, 2))
    raise _broken(
        file,
        f"{split}_images has shape {array.shape}; 2-D sets have (n, H, W) or (n, H, W, 3), and "
        "3-D sets are not supported",
    )


def _labels(file: Path, split: str, array: Array) -> Array:
    if array.ndim == 2 and array.shape[1] > 1:
        raise ConfigError(
            f"data.path={file.name} is multi-label: {split}_labels has {array.shape[1]} columns, "
            "and classification here means one class per record; use a single-label set such as "
            "pneumoniamnist"
        )
    if not np.issubdtype(array.dtype, np.integer) or array.ndim not in (1, 2):
        raise _broken(file, f"{split}_labels is {array.dtype} of shape {array.shape}")
    labels = array.reshape(-1).astype(np.int64)
    if labels.min(initial=0) < 0:
        raise _broken(file, f"{split}_labels has negative class ids")
    return labels


def _broken(file: Path, why: str) -> ConfigError:
    return ConfigError(
        f"data.path={file.name} is not a usable MedMNIST file: {why}; download it again from "
        "https://medmnist.com"
    )


def _fetch(name: str) -> Path:
    """The .npz that the medmnist package downloads (or has downloaded) for a name."""
    match = re.fullmatch(r"([a-z]+mnist(?:3d)?)(?:_(\d+))?", name)
    if match is None:
        raise ConfigError(
            f"data.path={Path(name).name} is neither an existing .npz file nor a MedMNIST name "
            "such as pneumoniamnist"
        )
    try:
        import medmnist
    except ImportError as error:
        raise ConfigError(
            f"data.path={name} is fetched by the medmnist package, which is not installed: "
            "pip install 'dp-fedmed[medmnist]', or give the path of an .npz file"
        ) from error
    flag, size = match[1], int(match[2] or 28)
    if flag not in medmnist.INFO:
        raise ConfigError(
            f"data.path={name} is not a MedMNIST set: choose from {', '.join(medmnist.INFO)}"
        )
    kind = getattr(medmnist, medmnist.INFO[flag]["python_class"])
    if size not in kind.available_sizes:
        raise ConfigError(f"data.path={name}: {flag} comes in sizes {kind.available_sizes}")
    try:
        loaded = kind(split="val", download=True, size=size)
    except Exception as error:  # the package wraps every failure, and its own wording varies
        raise ConfigError(
            f"data.path={name} could not be downloaded ({type(error).__name__}): without a network "
            "give the path of an .npz file from https://medmnist.com"
        ) from error
    return Path(loaded.root) / f"{flag}{loaded.size_flag}.npz"
