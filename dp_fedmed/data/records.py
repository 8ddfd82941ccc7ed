"""The two values that every loader returns: `Records`, and the `DataSet` of three disjoint parts.

Everything downstream may rely on what is checked here: lengths agree, class ids are in range,
images are uint8 or finite float32, and all parts have one input shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dp_fedmed.config import ConfigError

Array = NDArray[Any]
Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Records:
    """Records in memory.

    Attributes:
        x: float32 (n, d) features, or uint8 (n, C, H, W) images (float32 images are allowed).
        y: int64 (n,) class ids, or integer (n, H, W) masks of class ids.
        groups: int64 (n,) natural ids (imaging site, patient), or None.
        labels: int64 (n,) class id of each whole image where y holds masks, or None. A defective
            image may have an empty mask: nobody could say where the defect is.

    >>> records = Records(np.zeros((3, 2), np.float32), np.array([0, 1, 1]))
    >>> len(records.subset(np.array([0, 2])))
    2
    """

    x: Array
    y: Array
    groups: Array | None = None
    labels: Array | None = None

    def __post_init__(self) -> None:
        if self.x.ndim not in (2, 4) or self.x.dtype not in (np.uint8, np.float32):
            raise ConfigError(
                f"records have x of shape {self.x.shape} and type {self.x.dtype}: "
                "give float32 (n, d) features or uint8 (n, C, H, W) images"
            )
        if self.y.ndim not in (1, 3) or not np.issubdtype(self.y.dtype, np.integer):
            raise ConfigError(
                f"records have y of shape {self.y.shape} and type {self.y.dtype}: "
                "give integer class ids of shape (n,) or masks of shape (n, H, W)"
            )
        if self.y.ndim == 3 and self.y.shape[1:] != self.x.shape[2:]:
            raise ConfigError(
                f"masks of {self.y.shape[1:]} do not fit images of {self.x.shape[2:]} pixels"
            )
        lengths = {len(a) for a in (self.x, self.y, self.groups, self.labels) if a is not None}
        if len(lengths) > 1:
            raise ConfigError(
                f"x, y, groups and labels of one set of records have lengths {lengths}"
            )

    def __len__(self) -> int:
        return len(self.x)

    def subset(self, indices: Array) -> Records:
        """A copy of the records at these positions, in this order."""
        groups = None if self.groups is None else self.groups[indices]
        labels = None if self.labels is None else self.labels[indices]
        return Records(self.x[indices], self.y[indices], groups, labels)

    @property
    def image_labels(self) -> Array:
        """One class id per record: the label, else the highest class in the mask."""
        if self.labels is not None:
            return self.labels
        return self.y if self.y.ndim == 1 else self.y.max(axis=(1, 2)).astype(np.int64)


def joined(first: Records, second: Records) -> Records:
    """Two sets of records as one.

    >>> one = Records(np.zeros((3, 2), np.float32), np.array([0, 1, 1]))
    >>> len(joined(one, one))
    6
    """
    return Records(
        np.concatenate([first.x, second.x]),
        np.concatenate([first.y, second.y]),
        _joined(first.groups, second.groups),
        _joined(first.labels, second.labels),
    )


def _joined(first: Array | None, second: Array | None) -> Array | None:
    return None if first is None or second is None else np.concatenate([first, second])


@dataclass(frozen=True, eq=False)
class DataSet:
    """Training, validation and test records of one data set, and the names of its classes.

    For anomaly detection, class 0 is normal and the others are kinds of defect: the masks of
    training and validation records are 0 throughout. `group_names` names the groups where they
    are few and public (the categories of a folder), so that figures can be shown by name.

    >>> part = Records(np.zeros((3, 1, 8, 8), np.uint8), np.array([0, 1, 1]))
    >>> DataSet(part, part, part, num_classes=2, class_names=("benign", "malignant")).input_shape
    (1, 8, 8)
    """

    train: Records
    val: Records
    test: Records
    num_classes: int
    class_names: tuple[str, ...]
    group_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.class_names) != self.num_classes:
            raise ConfigError(f"{self.num_classes} classes have {len(self.class_names)} names")
        for name, part in self.parts().items():
            if len(part) == 0:
                raise ConfigError(f"the {name} part of the data set is empty")
            if part.x.shape[1:] != self.input_shape or part.y.ndim != self.train.y.ndim:
                raise ConfigError(
                    f"the {name} part has inputs of {part.x.shape[1:]} and labels of "
                    f"{part.y.shape[1:]}; the train part has {self.input_shape} and "
                    f"{self.train.y.shape[1:]}"
                )
            low, high = int(part.y.min()), int(part.y.max())
            if low < 0 or high >= self.num_classes:
                raise ConfigError(
                    f"the {name} part has class ids from {low} to {high}: "
                    f"{self.num_classes} classes are numbered 0 to {self.num_classes - 1}"
                )
            if part.x.dtype == np.float32 and not np.isfinite(part.x).all():
                raise ConfigError(f"the {name} part has inputs that are not finite numbers")
            if self.group_names and (
                part.groups is None
                or not 0 <= part.groups.min() <= part.groups.max() < len(self.group_names)
            ):
                raise ConfigError(
                    f"the {name} part has groups without a name: {len(self.group_names)} names are "
                    f"for groups numbered 0 to {len(self.group_names) - 1}"
                )

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one record's input."""
        return self.train.x.shape[1:]

    @property
    def is_segmentation(self) -> bool:
        """Whether labels are masks rather than one class per record."""
        return self.train.y.ndim == 3

    def parts(self) -> dict[str, Records]:
        """The three parts by name."""
        return {"train": self.train, "val": self.val, "test": self.test}
