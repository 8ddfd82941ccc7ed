"""Features of patches: each in its place, each image by itself."""

import numpy as np
import pytest
import torch

from dp_fedmed.learning.anomaly import (
    PatchFeatures,
)
from dp_fedmed.learning.anomaly.features import align, neighbourhood_mean
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
    extract = PatchFeatures(make_backbone("tiny"), dimension=10)
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
