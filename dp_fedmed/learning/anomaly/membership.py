"""A membership attack on anomaly models: images that a model was built from look more normal."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dp_fedmed.learning.anomaly.bank import MemoryBank
from dp_fedmed.learning.anomaly.metrics import auroc
from dp_fedmed.learning.anomaly.statistics import AnomalyModel


def nearest_distance_attack(
    model: MemoryBank | AnomalyModel, members: NDArray[Any], others: NDArray[Any]
) -> float:
    """How well the least patch score tells members from other normal images, as an AUROC.

    Near 1, the model gives away who was in it: a memory bank holds members' patches as they are, at
    distance 0. At 0.5 the attack learns nothing; that proves nothing about other attacks.

    Args:
        model: a memory bank or a model of released statistics.
        members: (n, P, channels) features of images that the model was built from.
        others: the same of images of the same kind that it never saw.
    """
    least = [model.patch_scores(features).min(axis=1) for features in (members, others)]
    scores = -np.concatenate(least).astype(np.float64)
    is_member = np.repeat([True, False], [len(members), len(others)])
    found = auroc(scores, is_member)
    if found is None:
        raise ValueError("the attack needs members and others, at least one of each")
    return found
