"""The two values that every loader returns: `Records`, and the `DataSet` of three disjoint parts.

Everything downstream may rely on what is checked here: lengths agree, class ids and targets are in
range, images are uint8 or finite float32, all parts have one input shape, and no patient is in two
parts.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dp_fedmed.data.targets import Target, binned, refuse_targets
from dp_fedmed.errors import ConfigError

Array = NDArray[Any]
Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Records:
    """Records in memory.

    Attributes:
        x: float32 (n, d) features, or uint8 (n, C, H, W) images (float32 images are allowed).
        y: int64 (n,) class ids, integer (n, H, W) masks of class ids, or float32 (n,) or (n, k)
            targets of a regression, scaled by `Target.scaled`.
        site: (n,) where each record comes from (a hospital, a category of images), or None. Ids are
            whole numbers or text.
        patient: (n,) whose record it is, or None: where patients are known, every cut and every
            partition keeps a patient's records together.
        labels: int64 (n,) class id of each whole image where y holds masks, or None. A defective
            image may have an empty mask: nobody could say where the defect is. For a regression,
            the bin of each target (`Target.bins`); quarters of the public range unless given.

    >>> records = Records(np.zeros((3, 2), np.float32), np.array([0, 1, 1]))
    >>> len(records.subset(np.array([0, 2])))
    2
    """

    x: Array
    y: Array
    site: Array | None = None
    patient: Array | None = None
    labels: Array | None = None

    def __post_init__(self) -> None:
        if self.x.ndim not in (2, 4) or self.x.dtype not in (np.uint8, np.float32):
            raise ConfigError(
                f"records have x of shape {self.x.shape} and type {self.x.dtype}: "
                "give float32 (n, d) features or uint8 (n, C, H, W) images"
            )
        dimensions = (1, 2) if self.is_regression else (1, 3)
        is_known = self.is_regression or np.issubdtype(self.y.dtype, np.integer)
        if self.y.ndim not in dimensions or not is_known:
            raise ConfigError(
                f"records have y of shape {self.y.shape} and type {self.y.dtype}: "
                "give integer class ids of shape (n,), masks of shape (n, H, W), or float32 "
                "targets of shape (n,) or (n, k)"
            )
        if self.y.ndim == 3 and self.y.shape[1:] != self.x.shape[2:]:
            raise ConfigError(
                f"masks of {self.y.shape[1:]} do not fit images of {self.x.shape[2:]} pixels"
            )
        for name, ids in (("site", self.site), ("patient", self.patient)):
            if ids is not None and (ids.ndim != 1 or ids.dtype.kind not in "iuU"):
                raise ConfigError(
                    f"records have {name} of shape {ids.shape} and type {ids.dtype}: "
                    "give one id per record, of shape (n,), as whole numbers or text"
                )
        given = (self.x, self.y, self.site, self.patient, self.labels)
        lengths = {len(array) for array in given if array is not None}
        if len(lengths) > 1:
            raise ConfigError(
                f"x, y, site, patient and labels of one set of records have lengths {lengths}"
            )

    def __len__(self) -> int:
        return len(self.x)

    def subset(self, indices: Array) -> Records:
        """A copy of the records at these positions, in this order."""
        further = (self.site, self.patient, self.labels)
        chosen = (None if array is None else array[indices] for array in further)
        return Records(self.x[indices], self.y[indices], *chosen)

    @property
    def is_regression(self) -> bool:
        """Whether y holds numbers rather than class ids."""
        return self.y.dtype == np.float32

    @property
    def image_labels(self) -> Array:
        """One class id per record: the label, else the highest class in the mask, or the bin."""
        if self.labels is not None:
            return self.labels
        if self.is_regression:
            return binned(self.y)
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
        _joined(first.site, second.site),
        _joined(first.patient, second.patient),
        _joined(first.labels, second.labels),
    )


def _joined(first: Array | None, second: Array | None) -> Array | None:
    return None if first is None or second is None else np.concatenate([first, second])


@dataclass(frozen=True, eq=False)
class DataSet:
    """Training, validation and test records of one data set, and the names of its classes.

    For anomaly detection, class 0 is normal and the others are kinds of defect: the masks of
    training and validation records are 0 throughout. `site_names` names the sites where they are
    numbered, few and public (the categories of a folder), so that figures can be shown by name.
    A patient is in one part only: a test on patients who were trained on would flatter the model.

    A regression has `targets` instead of classes, which describe the columns of y in public
    constants; a network then has an output for each.

    >>> part = Records(np.zeros((3, 1, 8, 8), np.uint8), np.array([0, 1, 1]))
    >>> DataSet(part, part, part, num_classes=2, class_names=("benign", "malignant")).input_shape
    (1, 8, 8)
    """

    train: Records
    val: Records
    test: Records
    num_classes: int = 0
    class_names: tuple[str, ...] = ()
    site_names: tuple[str, ...] = ()
    targets: tuple[Target, ...] = ()

    def __post_init__(self) -> None:
        if self.is_regression:
            object.__setattr__(self, "num_classes", len(self.targets))
            object.__setattr__(self, "class_names", tuple(t.name for t in self.targets))
        elif self.targets:
            raise ConfigError(
                f"{len(self.targets)} targets describe labels of type {self.train.y.dtype}: give "
                "float32 numbers (Target.scaled), or class_names for classes"
            )
        if len(self.class_names) != self.num_classes:
            raise ConfigError(f"{self.num_classes} classes have {len(self.class_names)} names")
        for name, part in self.parts().items():
            if len(part) == 0:
                raise ConfigError(f"the {name} part of the data set is empty")
            kinds = {(own.y.ndim, own.is_regression) for own in (part, self.train)}
            if part.x.shape[1:] != self.input_shape or len(kinds) > 1:
                raise ConfigError(
                    f"the {name} part has inputs of {part.x.shape[1:]} and labels of "
                    f"{part.y.shape[1:]}; the train part has {self.input_shape} and "
                    f"{self.train.y.shape[1:]}"
                )
            if self.is_regression:
                refuse_targets(name, part.y, self.targets)
            elif (low := int(part.y.min())) < 0 or (high := int(part.y.max())) >= self.num_classes:
                raise ConfigError(
                    f"the {name} part has class ids from {low} to {high}: "
                    f"{self.num_classes} classes are numbered 0 to {self.num_classes - 1}"
                )
            if part.x.dtype == np.float32 and not np.isfinite(part.x).all():
                raise ConfigError(f"the {name} part has inputs that are not finite numbers")
            self._check_ids(name, part)
        self._check_patients()

    def _check_ids(self, name: str, part: Records) -> None:
        most = self.num_classes - 1
        classes = None if self.is_regression else part.labels  # bins of a target are no classes
        if classes is not None and not 0 <= classes.min() <= classes.max() <= most:
            raise ConfigError(
                f"the {name} part has labels of whole images from {classes.min()} to "
                f"{classes.max()}: {self.num_classes} classes are numbered 0 to {most}"
            )
        last = len(self.site_names) - 1
        if self.site_names and (
            part.site is None
            or part.site.dtype.kind == "U"
            or not 0 <= part.site.min() <= part.site.max() <= last
        ):
            raise ConfigError(
                f"the {name} part has sites without a name: {last + 1} names are for sites "
                f"numbered 0 to {last}"
            )

    def _check_patients(self) -> None:
        known = [(n, p.patient) for n, p in self.parts().items() if p.patient is not None]
        for (first, some), (second, others) in itertools.combinations(known, 2):
            if shared := len(np.intersect1d(some, others)):
                raise ConfigError(
                    f"{shared} patients have records in the {first} part and in the {second} part "
                    "of the data set: cut it by patient, as split_records does with "
                    "Records(…, patient=…)"
                )

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one record's input."""
        return self.train.x.shape[1:]

    @property
    def is_regression(self) -> bool:
        """Whether labels are numbers rather than classes."""
        return self.train.is_regression

    @property
    def is_segmentation(self) -> bool:
        """Whether labels are masks rather than one class per record."""
        return self.train.y.ndim == 3

    def parts(self) -> dict[str, Records]:
        """The three parts by name."""
        return {"train": self.train, "val": self.val, "test": self.test}
