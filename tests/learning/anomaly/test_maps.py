"""Maps of pixels from the scores of patches."""

import numpy as np
import pytest

from dp_fedmed.learning.anomaly import (
    pixel_maps,
)


def rng(seed=0):
    return np.random.Generator(np.random.Philox(seed))


def test_maps_put_the_heat_where_the_patch_is():
    scores = np.zeros((1, 64), np.float32)
    scores[0, 8 * 2 + 6] = 1.0
    maps = pixel_maps(scores, image_size=64)
    assert maps.shape == (1, 64, 64)
    row, column = np.unravel_index(maps[0].argmax(), (64, 64))
    assert 16 <= row < 24
    assert 48 <= column < 56


def test_blur_spreads_and_keeps_the_level():
    scores = rng().random((2, 64)).astype(np.float32)
    sharp, soft = (pixel_maps(scores, image_size=32, blur=blur) for blur in (0.0, 4.0))
    assert soft.std() < sharp.std()
    assert soft.mean() == pytest.approx(sharp.mean(), rel=0.1)


def test_patches_that_are_no_square_are_refused():
    with pytest.raises(ValueError, match="square"):
        pixel_maps(np.zeros((1, 60), np.float32), image_size=32)
