"""Anomaly detection from a folder in the layout of MVTec AD: one category, or a folder of them."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dp_fedmed.config import DataConfig
from dp_fedmed.data.records import Array, DataSet, Records
from dp_fedmed.data.splits import stratified_cut
from dp_fedmed.errors import ConfigError

if TYPE_CHECKING:
    from PIL import Image

log = logging.getLogger(__name__)

_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff")
_GREY = ("1", "L", "LA", "I", "I;16", "I;16B", "F")
GOOD = "good"
_DAMAGED = "it cannot be read as an image: it is damaged or cut short"


def load_mvtec_folder(config: DataConfig, seed: int) -> DataSet:
    """A folder of ``train/good``, ``test/<kind>`` and ``ground_truth/<kind>/<name>_mask.png``.

    A folder whose subfolders look like this is a data set of several categories. Images are resized
    to ``data.image_size`` squares; they stay grey when all of them are. ``test/good`` is normal,
    every other kind is a class of its own: ``labels`` holds the kind, a mask holds 0 and the number
    of the kind, and a marked defect keeps at least one pixel however small the image becomes. A
    mask may also be a folder of masks that are united (``ground_truth/<kind>/<name>/*.png``).
    ``data.val_fraction`` of ``train/good`` is the validation part; ``site`` holds the category.

    Raises:
        ConfigError: naming ``data.path`` and the file that is missing, unreadable or does not fit.
    """
    return _load(config, seed, needs_test=True)


def load_mvtec_site(config: DataConfig, seed: int) -> DataSet:
    """The same at a deployed site, which may hold ``train/good`` only.

    Without ``test`` its validation images, all normal, take its place: nothing is learnt from it.
    """
    return _load(config, seed, needs_test=False)


def _load(config: DataConfig, seed: int, *, needs_test: bool) -> DataSet:
    if not config.path:
        raise ConfigError(
            "data.path is not set: data.name=mvtec_folder needs a folder of train/good and test"
        )
    folder = Path(config.path).expanduser()
    categories = _categories(folder)
    has_test = needs_test or any((category / "test").is_dir() for category in categories)
    kinds = _kinds(folder, categories) if has_test else [GOOD]
    normal = [
        _Picture(file, site, 0)
        for site, category in enumerate(categories)
        for file in _images(category / "train" / GOOD)
    ]
    tested = [
        _Picture(file, site, number, _mask_files(category, kind, file) if number else ())
        for site, category in enumerate(categories)
        for number, kind in enumerate(kinds)
        if (category / "test" / kind).is_dir()
        for file in _images(category / "test" / kind)
    ]
    channels = 3 if any(_is_coloured(picture.file) for picture in (*normal, *tested)) else 1
    records = _read(normal, config.image_size, channels)
    num_val = max(1, round(len(records) * config.val_fraction))
    if num_val >= len(records):
        raise ConfigError(
            f"data.val_fraction={config.val_fraction:g} of {len(records)} images in train/good "
            "leaves nothing to train on: lower it or give more images"
        )
    val, train = stratified_cut(
        np.asarray(records.site), (num_val,), seed=seed, purpose="mvtec-val"
    )
    return DataSet(
        records.subset(train),
        records.subset(val),
        _read(tested, config.image_size, channels) if has_test else records.subset(val),
        num_classes=len(kinds),
        class_names=("normal", *kinds[1:]),
        site_names=tuple(category.name for category in categories),
    )


@dataclass(frozen=True)
class _Picture:
    file: Path
    site: int
    kind: int
    masks: tuple[Path, ...] = ()


def _categories(folder: Path) -> list[Path]:
    """The category folders: the folder itself, or those in it."""
    if not folder.is_dir():
        raise ConfigError(f"data.path={folder.name} is not a folder")
    found = [
        path
        for path in (folder, *sorted(folder.iterdir()))
        if (path / "train" / GOOD).is_dir() and (path == folder or path.is_dir())
    ]
    if not found:
        raise ConfigError(
            f"data.path={folder.name} holds neither train/good nor folders that hold it: give one "
            "category, or the folder of all categories"
        )
    if found[0] == folder:
        return [folder]
    return found


def _kinds(folder: Path, categories: list[Path]) -> list[str]:
    """`good` and the kinds of defect, over all categories."""
    names: set[str] = set()
    for category in categories:
        if not (category / "test").is_dir():
            raise ConfigError(f"data.path: {category.name}/test is missing")
        names |= {path.name for path in (category / "test").iterdir() if path.is_dir()}
    if GOOD not in names or len(names) < 2:
        raise ConfigError(
            f"data.path={folder.name}: test holds {sorted(names) or 'no folder'}; it needs "
            "test/good with normal images and one folder or more of defects"
        )
    if len(names) > 255:
        raise ConfigError(f"data.path={folder.name}: {len(names)} kinds of defect; at most 254")
    return [GOOD, *sorted(names - {GOOD})]


def _images(folder: Path) -> list[Path]:
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() in _SUFFIXES)
    if not files:
        raise ConfigError(f"data.path: {_short(folder)} holds no image ({', '.join(_SUFFIXES)})")
    return files


def _mask_files(category: Path, kind: str, image: Path) -> tuple[Path, ...]:
    """The mask of a defective image: one file, or all files of a folder of its name."""
    folder = category / "ground_truth" / kind
    for name in (f"{image.stem}_mask.png", f"{image.stem}.png"):
        if (folder / name).is_file():
            return (folder / name,)
    if (folder / image.stem).is_dir():
        return tuple(_images(folder / image.stem))
    raise ConfigError(
        f"data.path: {_short(folder)}/{image.stem}_mask.png is missing, and {_short(image)} "
        "needs it"
    )


def _read(pictures: list[_Picture], size: int, channels: int) -> Records:
    x = np.empty((len(pictures), channels, size, size), np.uint8)
    y = np.zeros((len(pictures), size, size), np.uint8)
    for i, picture in enumerate(pictures):
        image = open_picture(picture.file)
        x[i] = _pixels(image, size, channels)
        if picture.masks:
            y[i] = picture.kind * _united(picture, image.size, size)
    site, labels = np.array([(p.site, p.kind) for p in pictures], dtype=np.int64).T
    return Records(x, y, site, labels=labels)


def _pixels(image: Image.Image, size: int, channels: int) -> Array:
    from PIL import Image

    image = eight_bit(image).convert("L" if channels == 1 else "RGB")
    array = np.asarray(image.resize((size, size), Image.Resampling.BILINEAR))
    return array[None] if channels == 1 else array.transpose(2, 0, 1)


def eight_bit(image: Image.Image) -> Image.Image:
    """16-bit grey, 0..65535, as 0..255; other images as they are."""
    from PIL import Image

    if not image.mode.startswith("I"):
        return image
    return Image.fromarray((np.asarray(image, dtype=np.uint32) // 257).astype(np.uint8))


def _united(picture: _Picture, full_size: tuple[int, int], size: int) -> Array:
    """All masks of an image as one, boolean (size, size)."""
    from PIL import Image

    marked = np.zeros(full_size[::-1], bool)
    for file in picture.masks:
        mask = open_picture(file)
        if mask.size != full_size:
            raise wrong_file(
                file,
                f"the mask has {mask.size[0]}×{mask.size[1]} pixels and its image "
                f"{full_size[0]}×{full_size[1]}",
            )
        marked |= np.asarray(mask.convert("L")) > 0
    if not marked.any():
        log.warning(
            "%s marks no pixel: its image is defective, and left out of pixel figures",
            _short(picture.masks[0]),
        )
        return np.zeros((size, size), bool)
    share = np.asarray(
        Image.fromarray(marked.astype(np.float32)).resize((size, size), Image.Resampling.BOX)
    )
    return share >= min(0.5, float(share.max()))


def _is_coloured(file: Path) -> bool:
    return open_picture(file, header_only=True).mode not in _GREY


def open_picture(file: Path, wrong: str = _DAMAGED, *, header_only: bool = False) -> Image.Image:
    """Opens an image; `wrong` says what is the matter with one that cannot be read."""
    from PIL import Image

    try:
        with Image.open(file) as picture:
            if not header_only:
                picture.load()
            return picture
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise wrong_file(file, wrong) from error


def _short(path: Path) -> str:
    return "/".join(path.parts[-2:])


def wrong_file(file: Path, why: str) -> ConfigError:
    """The refusal of one file, named with its folder alone."""
    return ConfigError(f"data.path: {_short(file)}: {why}")
