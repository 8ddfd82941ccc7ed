"""Segmentation from a folder in nnU-Net's layout, 2-D PNG images with masks of class ids."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import numpy as np

from dp_fedmed.config import DataConfig
from dp_fedmed.data.mvtec import eight_bit, open_picture
from dp_fedmed.data.mvtec import wrong_file as wrong
from dp_fedmed.data.records import Array, DataSet, Records
from dp_fedmed.data.splits import split_records
from dp_fedmed.errors import ConfigError

log = logging.getLogger(__name__)

BINARY = 255
_DAMAGED = "it cannot be read as a PNG image"


def load_nnunet_folder(config: DataConfig, seed: int) -> DataSet:
    """A folder of ``imagesTr/NAME_0000.png`` (further channels ``_0001`` …), ``labelsTr/NAME.png``.

    ``imagesTs`` and ``labelsTs``, when both are there, are the test part; else
    ``data.test_fraction`` is cut from the training part. Images are grey or RGB and are resized to
    ``data.image_size`` squares (bilinear; masks by nearest neighbour). A mask holds class ids that
    are contiguous from 0 over the whole set, or just 0 and 255. Class names come from
    ``dataset.json`` where there is one.

    Raises:
        ConfigError: naming ``data.path`` and the file that is missing, unreadable or does not fit.
    """
    return _load(config, seed, learns_from_test=False)


def load_nnunet_site(config: DataConfig, seed: int) -> DataSet:
    """The same at a deployed site, which trains on all parts: a class may be in the test only."""
    return _load(config, seed, learns_from_test=True)


def _load(config: DataConfig, seed: int, *, learns_from_test: bool) -> DataSet:
    if not config.path:
        raise ConfigError(
            "data.path is not set: data.name=nnunet_folder needs a folder of imagesTr and labelsTr"
        )
    folder = Path(config.path).expanduser()
    if not (folder / "imagesTr").is_dir() or not (folder / "labelsTr").is_dir():
        raise ConfigError(
            f"data.path={folder.name} does not hold the folders imagesTr and labelsTr"
        )
    present: set[int] = set()
    records = _read_part(folder, "Tr", config.image_size, present)
    official = None
    if (folder / "labelsTs").is_dir():
        tested: set[int] = set()
        official = _read_part(folder, "Ts", config.image_size, tested)
        unknown = sorted(_ids(tested) - _ids(present))
        if unknown and not learns_from_test:
            raise ConfigError(
                f"data.path: labelsTs holds the class ids {unknown}, which no mask in labelsTr "
                "has: nothing could learn them, so mark them in labelsTr or leave them out"
            )
        present |= tested
    elif (folder / "imagesTs").is_dir():
        log.info("imagesTs has no labelsTs: the test part is cut from imagesTr")
    num_classes = _count_classes(present)
    train, val, test = split_records(
        records,
        val_fraction=config.val_fraction,
        test_fraction=config.test_fraction,
        seed=seed,
        strata=np.zeros(len(records)),
        test=official,
    )
    names = _class_names(folder, num_classes)
    return DataSet(train, val, test, num_classes=num_classes, class_names=names)


def _read_part(folder: Path, part: str, size: int, present: set[int]) -> Records:
    """All images of one part; the class ids found on disk are added to `present`."""
    cases: dict[str, list[Path]] = {}
    for file in sorted((folder / f"images{part}").glob("*.png")):
        match = re.fullmatch(r"(.+)_(\d{4})", file.stem)
        if match is None:
            raise wrong(file, "its name does not end in a channel number such as _0000")
        channels = cases.setdefault(match[1], [])
        if int(match[2]) != len(channels):
            raise wrong(file, f"channel _{len(channels):04d} of this image is missing")
        channels.append(file)
    if not cases:
        raise ConfigError(f"data.path={folder.name}: images{part} holds no .png file")
    images: list[Array] = []
    masks: list[Array] = []
    for case, channels in cases.items():
        label = folder / f"labels{part}" / f"{case}.png"
        if not label.is_file():
            raise ConfigError(
                f"data.path: labels{part}/{case}.png is missing, and images{part}/"
                f"{channels[0].name} needs it"
            )
        mask, full_size = _read_mask(label, size, present)
        image = np.concatenate([_read_image(file, size, full_size) for file in channels])
        if images and image.shape != images[0].shape:
            raise wrong(
                channels[0], f"it has {len(image)} channels, the others have {len(images[0])}"
            )
        images.append(image)
        masks.append(mask)
    return Records(np.stack(images), np.stack(masks))


def _read_image(file: Path, size: int, full_size: tuple[int, int]) -> Array:
    """One file's channels as uint8 (C, size, size)."""
    from PIL import Image

    picture = open_picture(file, _DAMAGED)
    if picture.size != full_size:
        raise wrong(
            file,
            f"the image has {picture.size[0]}×{picture.size[1]} pixels and its label "
            f"{full_size[0]}×{full_size[1]}",
        )
    picture = eight_bit(picture)
    if picture.mode not in ("L", "RGB"):
        picture = picture.convert("L" if picture.mode in ("1", "LA") else "RGB")
    array = np.asarray(picture.resize((size, size), Image.Resampling.BILINEAR))
    return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)


def _read_mask(file: Path, size: int, present: set[int]) -> tuple[Array, tuple[int, int]]:
    """One mask as uint8 class ids (size, size), and its size on disk."""
    from PIL import Image

    picture = open_picture(file, _DAMAGED)
    if picture.mode not in ("1", "L", "P"):
        raise wrong(file, f"a label is one 8-bit channel of class ids, not mode {picture.mode}")
    ids = np.asarray(picture).astype(np.uint8)
    # Before resizing: a class of a few pixels may not survive it, and is a class all the same.
    found = set(np.unique(ids).tolist())
    if 255 in found:
        if found - {0, 255}:
            raise wrong(file, "it mixes 255 with other class ids: use 0 and 255, or ids from 0 on")
        ids, found = (ids // 255).astype(np.uint8), {0, BINARY}
    present |= found
    resized = Image.fromarray(ids).resize((size, size), Image.Resampling.NEAREST)
    return np.asarray(resized), picture.size


def _ids(present: set[int]) -> set[int]:
    return {1 if number == BINARY else number for number in present}


def _count_classes(present: set[int]) -> int:
    """The number of classes, from the ids on disk."""
    ids = sorted(_ids(present))
    if BINARY in present and len(ids) > 2:
        raise ConfigError(
            f"data.path: some labels hold 0 and 255 and others the class ids {ids}: what 255 means "
            "is unclear, write class ids from 0 on everywhere"
        )
    if len(ids) < 2 or ids[-1] != len(ids) - 1:
        raise ConfigError(
            f"data.path: the labels hold the class ids {ids}; they must be contiguous from 0, and "
            "two or more"
        )
    return len(ids)


def _class_names(folder: Path, num_classes: int) -> tuple[str, ...]:
    file = folder / "dataset.json"
    default = ("background", *(f"class {number}" for number in range(1, num_classes)))
    if not file.is_file():
        return ("background", "foreground") if num_classes == 2 else default
    try:
        labels = json.loads(file.read_text(encoding="utf-8")).get("labels", {})
        # nnU-Net v2 writes {name: id}, v1 {id: name}.
        by_id = {int(key): str(value) for key, value in labels.items() if str(key).isdigit()} or {
            int(value): str(key) for key, value in labels.items() if str(value).isdigit()
        }
    except (OSError, ValueError, AttributeError) as error:
        raise wrong(file, "it is not nnU-Net's JSON") from error
    return tuple(by_id.get(number, default[number]) for number in range(num_classes))
