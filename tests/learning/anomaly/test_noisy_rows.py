"""Rows with noise: one image moves them by at most the sensitivity."""

import numpy as np
import pytest

from dp_fedmed.learning.anomaly.noisy_rows import NoisyRows, RowsModel
from dp_fedmed.privacy import NoiseStream
from tests.learning.anomaly.patches import (
    hostile,
    images,
    public_map,
)


@pytest.mark.parametrize("m", [1, 4])
def test_replacing_an_image_moves_the_rows_by_at_most_the_sensitivity(m):
    rows = NoisyRows(public_map(), rows_per_image=m)
    data = images()

    def chosen(values):
        batches = [values[:5], values[5:]]
        selected = rows.select(batches, selection=NoiseStream.from_public_seed(4))
        assert len(selected) == m * len(data)
        return selected.astype(np.float64)

    before = chosen(data)
    for other in hostile():
        changed = data.copy()
        changed[3] = other
        after = chosen(changed)
        assert np.linalg.norm(after - before) <= rows.sanitizer.sensitivity == 2.0 * np.sqrt(m)
        assert (after != before).any(axis=1).sum() <= m, "the choice of rows looked at an image"


def test_noisy_rows_carry_the_noise_they_promise():
    rows = NoisyRows(public_map(), rows_per_image=4)
    data = images(400)
    clean = rows.select([data], selection=NoiseStream.from_public_seed(4), most=1000)
    assert len(clean) == 1000
    noisy = rows.noised(clean, noise_multiplier=3.0, noise=NoiseStream.from_public_seed(5))
    assert (noisy - clean).std() == pytest.approx(3.0 * np.sqrt(4), rel=0.05), "σ·C√m"
    assert RowsModel(rows.public_map, noisy).patch_scores(data[:2]).shape == (2, 16)
