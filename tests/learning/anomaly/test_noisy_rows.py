"""Rows with noise: one image moves them by at most the sensitivity."""

import numpy as np
import pytest

from dp_fedmed.learning.anomaly.noisy_rows import RowsModel, drawn_rows
from dp_fedmed.privacy import NoiseKey, NoiseStream
from dp_fedmed.privacy.mechanisms.noisy_rows import NoisyRows
from dp_fedmed.privacy.streams.rounds import RoundStreams
from tests.learning.anomaly.patches import (
    hostile,
    images,
    public_map,
)


@pytest.mark.parametrize("m", [1, 4])
def test_replacing_an_image_moves_the_rows_by_at_most_the_sensitivity(m):
    mechanism = NoisyRows(noise_multiplier=3.0, rows_per_record=m)
    data = images()

    def chosen(values):
        batches = [values[:5], values[5:]]
        selected = drawn_rows(
            mechanism, public_map(), batches, selection=NoiseStream.from_public_seed(4)
        )
        assert len(selected) == m * len(data)
        return mechanism.sums.grid.values(selected)

    before = chosen(data)
    for other in hostile():
        changed = data.copy()
        changed[3] = other
        after = chosen(changed)
        assert np.linalg.norm(after - before) <= 2.0 * np.sqrt(m)
        assert 2.0 * mechanism.std / 3.0 == pytest.approx(2.0 * np.sqrt(m)), "half of it is σ's"
        assert (after != before).any(axis=1).sum() <= m, "the choice of rows looked at an image"


def test_noisy_rows_carry_the_noise_they_promise():
    mechanism = NoisyRows(noise_multiplier=3.0, rows_per_record=4)
    data, selection = images(400), NoiseStream.from_public_seed(4)
    clean = drawn_rows(mechanism, public_map(), [data], selection=selection, most=1000)
    assert len(clean) == 1000
    streams = RoundStreams(NoiseKey.from_public_seed(5), "run", 1, bytes(32))
    noisy = mechanism.release(clean, streams)
    noise = noisy - mechanism.sums.grid.values(clean)
    assert noise.std() == pytest.approx(3.0 * np.sqrt(4), rel=0.05), "σ·C√m"
    assert RowsModel(public_map(), noisy).patch_scores(data[:2]).shape == (2, 16)
