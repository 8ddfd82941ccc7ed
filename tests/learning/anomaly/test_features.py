"""Features of patches: each image by itself, and kept between rounds to the same bits."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from dp_fedmed.learning.anomaly.features import (
    FeatureCache,
    PatchFeatures,
    align,
    neighbourhood_mean,
)
from dp_fedmed.models.backbones import make_backbone


def rng(seed=0):
    return np.random.Generator(np.random.Philox(seed))


def test_features_keep_each_patch_in_its_place():
    extract = PatchFeatures(make_backbone("tiny"), batch_size=2)
    images = np.zeros((3, 3, 32, 32), np.uint8)
    images[1, :, 0:4, 28:32] = 255
    features = extract(images)
    assert features.shape == (3, 256, 24)
    assert features.dtype == np.float32
    change = np.abs(features[1] - features[0]).sum(axis=1).reshape(16, 16)
    assert np.unravel_index(change.argmax(), change.shape)[0] <= 2
    assert np.unravel_index(change.argmax(), change.shape)[1] >= 13
    assert np.allclose(features[0], features[2], atol=1e-6)


def test_an_image_is_treated_by_itself():
    extract = PatchFeatures(make_backbone("tiny"), grid=8)
    images = rng().integers(0, 256, (5, 3, 32, 32)).astype(np.uint8)
    assert np.allclose(extract(images)[3], extract(images[3:4])[0], atol=1e-6)


def test_neighbourhoods_are_means_also_at_the_border():
    maps = torch.arange(9.0).reshape(1, 1, 3, 3)
    averaged = neighbourhood_mean(maps)
    assert averaged[0, 0, 1, 1] == 4.0
    assert averaged[0, 0, 0, 0] == pytest.approx((0 + 1 + 3 + 4) / 4)


def test_layers_meet_on_the_largest_grid_or_the_one_asked_for():
    maps = [torch.ones(1, 2, 8, 8), torch.full((1, 3, 4, 4), 2.0)]
    assert align(maps).shape == (1, 5, 8, 8)
    small = align(maps, grid=4)
    assert small.shape == (1, 5, 4, 4)
    assert small[0, :, 0, 0].tolist() == [1, 1, 2, 2, 2]


class Counting(PatchFeatures):
    """Counts how often features are computed."""

    computed = 0

    def batches(self, images) -> Iterator[np.ndarray]:
        self.computed += 1
        return super().batches(images)


def pictures(seed, n=20):
    rng = np.random.Generator(np.random.PCG64(seed))
    return rng.integers(0, 256, (n, 3, 16, 16), dtype=np.uint8)


@pytest.fixture
def extract():
    return Counting(make_backbone("tiny"), batch_size=8)


def test_what_comes_back_is_what_was_computed(extract):
    cache = FeatureCache(extract)
    fresh = list(PatchFeatures(extract.backbone, batch_size=8).batches(pictures(0)))
    first, second = list(cache.batches(pictures(0))), list(cache.batches(pictures(0).copy()))
    assert extract.computed == 1
    for kept in (first, second):
        assert [b.tobytes() for b in kept] == [b.tobytes() for b in fresh]
    with pytest.raises(ValueError, match="read-only"):
        first[0][0] = 0.0


def test_other_images_have_other_features(extract):
    cache = FeatureCache(extract)
    changed = pictures(0)
    changed[3, 1, 2, 2] ^= 1
    one, two = list(cache.batches(pictures(0))), list(cache.batches(changed))
    assert extract.computed == 2
    assert not np.array_equal(one[0], two[0])
    list(cache.batches(changed.reshape(20, 3, 8, 32)))
    assert extract.computed == 3, "the same bytes in another shape are another image"


def test_no_more_than_the_bound_is_kept(extract):
    size = sum(b.nbytes for b in extract.batches(pictures(0)))
    cache = FeatureCache(extract, most_bytes=2 * size)
    extract.computed = 0
    for seed in (0, 1, 2):
        list(cache.batches(pictures(seed)))
        assert cache.size <= 2 * size
    list(cache.batches(pictures(2)))
    list(cache.batches(pictures(1)))
    assert extract.computed == 3
    list(cache.batches(pictures(0)))
    assert extract.computed == 4, "asked for longest ago, dropped first"
    list(cache.batches(pictures(7, n=60)))
    list(cache.batches(pictures(7, n=60)))
    assert extract.computed == 6, "too large by itself, and so not kept"
    assert cache.size <= 2 * size


def test_what_nobody_asks_for_again_is_let_go(extract):
    cache = FeatureCache(extract)
    list(cache.batches(pictures(0)))
    assert cache.size > 0
    list(cache.batches(pictures(0), last=True))
    assert (cache.size, extract.computed) == (0, 1)
    list(cache.batches(pictures(1), last=True))
    assert cache.size == 0
    assert list(cache.batches(pictures(0)[:0])) == []
