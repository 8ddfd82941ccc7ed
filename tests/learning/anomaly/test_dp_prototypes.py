"""Private prototypes: they follow the patches, and noise moves none."""

import numpy as np
import pytest

from dp_fedmed.learning.anomaly.dp_prototypes import DPPrototypes
from tests.learning.anomaly.patches import (
    DIMENSION,
    anchors,
    fitted,
    images,
    public_map,
)


def test_prototypes_move_to_where_patches_are():
    data = images(300)
    statistic = DPPrototypes(public_map(), anchors(), num_steps=4, radius=2.0)
    patches = public_map()(data).reshape(-1, DIMENSION)

    def spread(prototypes):
        return np.linalg.norm(patches[:, None] - prototypes[None], axis=2).min(axis=1).mean()

    state = fitted(statistic, data)
    assert spread(state["prototypes"]) < 0.9 * spread(statistic.anchors)
    assert state["shares"].sum() == pytest.approx(1.0)


def test_a_prototype_that_is_all_noise_stays_and_does_not_count():
    statistic = DPPrototypes(public_map(), anchors(), num_steps=1)
    state = statistic.initial_state()
    mean = np.zeros(statistic.vector_size(0))
    mean[0] = 0.7
    after = statistic.update(state, mean, noise_std=1e-3)
    assert after["shares"].tolist() == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert np.array_equal(after["prototypes"], statistic.anchors)
