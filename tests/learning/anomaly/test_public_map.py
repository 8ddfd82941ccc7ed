"""Maps that no private image has a part in."""

import numpy as np
import pytest

from dp_fedmed.learning.anomaly.public_map import fit_public_map
from tests.learning.anomaly.patches import (
    hostile,
    images,
    public_map,
)


def test_public_maps_give_the_unit_ball():
    fitted_map = fit_public_map(images(20, seed=8), 4)
    for made in (public_map(), fitted_map):
        mapped = made(np.stack(hostile())).astype(np.float64)
        assert np.isfinite(mapped).all()
        assert np.linalg.norm(mapped, axis=2).max() <= 1.0


def test_a_public_map_looks_at_public_images_only():
    one, two = (fit_public_map(images(20, seed=8), 4) for _ in range(2))
    assert np.array_equal(one.matrix, two.matrix)
    with pytest.raises(ValueError, match="dimension=13"):
        fit_public_map(images(20), 13)
