"""Refuses a site's records that a network of the server's could not be trained on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dp_fedmed.config import TaskKind
from dp_fedmed.data import Records
from dp_fedmed.errors import SiteRefused

MOST_CLASSES, MOST_CHANNELS = 100_000, 16
UNFIT = "its records do not fit the shape and classes of the server's"


def refuse_unfit(records: Records, shape: Sequence[int], classes: int, kind: TaskKind) -> None:
    """Refuse records that a network of the server's cannot be trained on, if only one does not fit.

    One that failed when its turn came would tell, without noise, that it was drawn.

    Raises:
        SiteRefused: for a shape, a class id or a number.
    """
    # A backbone takes grey and coloured images alike; a network takes what it was built for.
    first = 1 if kind is TaskKind.anomaly else 0
    same = tuple(shape[first:]) == records.x.shape[1 + first :]
    if (
        not same
        or max(shape[:first], default=1) > MOST_CHANNELS
        or not 1 <= classes <= MOST_CLASSES
    ):
        raise SiteRefused(
            f"the server's records have shape {list(shape)} and {classes} classes, this client's "
            f"shape {list(records.x.shape[1:])}: start both with the same data settings",
            UNFIT,
        )
    y = records.y
    if len(y) and kind is not TaskKind.anomaly and np.issubdtype(y.dtype, np.integer):
        low, high = int(y.min()), int(y.max())
        if low < 0 or high >= classes:
            raise SiteRefused(
                f"this client's class ids go from {low} to {high}, the server's from 0 to "
                f"{classes - 1}: correct the labels, or have the server's data name every class",
                UNFIT,
            )
    for array in (records.x, y):
        if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
            raise SiteRefused("this client's records have numbers that are not finite", UNFIT)
