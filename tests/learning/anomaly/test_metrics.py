"""Maps of pixels, figures of scores, and the attack on anomaly models."""

import time
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.ndimage import label
from sklearn.metrics import roc_auc_score

from dp_fedmed.learning.anomaly import (
    MemoryBank,
    pixel_maps,
)
from dp_fedmed.learning.anomaly.metrics import (
    FPR_LIMITS,
    anomaly_metrics,
    aupro,
    auroc,
    nearest_distance_attack,
)
from tests.learning.anomaly.patches import images


def rng(seed=0):
    return np.random.Generator(np.random.Philox(seed))


def slow_aupro(maps, masks, limit):
    """By definition: every threshold, every region, then the trapezoids up to the limit."""
    regions = []
    for i, mask in enumerate(masks):
        marked, count = label(mask > 0, structure=np.ones((3, 3)))
        regions += [(i, marked == number) for number in range(1, count + 1)]
    normal = masks == 0
    points = [(0.0, 0.0)]
    for threshold in sorted(set(maps.ravel().tolist()), reverse=True):
        found = maps >= threshold
        fpr = found[normal].mean()
        pro = np.mean([found[i][region].mean() for i, region in regions])
        points.append((fpr, pro))
    area = 0.0
    for (x0, y0), (x1, y1) in pairwise(points):
        if x1 <= limit:
            area += (x1 - x0) * (y0 + y1) / 2
        elif x0 < limit:
            at_limit = y0 + (y1 - y0) * (limit - x0) / (x1 - x0)
            area += (limit - x0) * (y0 + at_limit) / 2
    return area / limit


def random_case(seed, levels):
    draw = rng(seed)
    masks = np.zeros((4, 12, 12), np.uint8)
    masks[0, 1:4, 2:9] = 1
    masks[0, 8, 8] = 2
    masks[2, 5:7, 5:7] = 1
    masks[2, 7, 7] = 1
    maps = draw.integers(0, levels, masks.shape) + (masks > 0) * levels // 3
    return maps.astype(np.float32), masks


@pytest.mark.parametrize("levels", [3, 20, 100000])
@pytest.mark.parametrize("seed", range(4))
def test_aupro_is_what_the_definition_says(seed, levels):
    maps, masks = random_case(seed, levels)
    found = aupro(maps, masks)
    assert found is not None
    for limit in FPR_LIMITS:
        assert found[limit] == pytest.approx(slow_aupro(maps, masks, limit), abs=1e-9)


def test_touching_corners_are_one_region_and_small_regions_count_as_much_as_large():
    masks = np.zeros((1, 10, 10), np.uint8)
    masks[0, :4, :4] = 1
    masks[0, 9, 9] = 1
    maps = np.zeros(masks.shape)
    maps[0, 9, 9] = 1.0
    found = aupro(maps, masks)
    assert found is not None
    # Half of the regions is found at no cost, the other half together with all normal pixels.
    assert found[1.0] == pytest.approx(0.75)
    masks[0, 4, 4] = 1
    maps[0, 4, 4] = 1.0
    again = aupro(maps, masks)
    assert again is not None
    assert again[1.0] == pytest.approx(0.5 + 0.5 * (1 / 17 + 16 / 17 * 0.5) + 0.0)


@pytest.mark.parametrize("levels", [2, 7, 10**6])
def test_auroc_agrees_with_scikit_learn(levels):
    draw = rng(levels)
    scores, labels = draw.integers(0, levels, 500).astype(np.float64), draw.integers(0, 2, 500)
    assert auroc(scores, labels) == pytest.approx(roc_auc_score(labels, scores))


def test_the_ends_of_the_scale():
    masks = random_case(0, 5)[1]
    perfect, wrong = masks.astype(np.float64), -masks.astype(np.float64)
    labels = masks.max(axis=(1, 2))
    best = anomaly_metrics(perfect.max(axis=(1, 2)), perfect, labels=labels, masks=masks)
    assert set(best) == {"image_auroc", "pixel_auroc", *(f"aupro_{x:g}" for x in FPR_LIMITS)}
    assert best["image_auroc"] == 1.0
    assert best["pixel_auroc"] == pytest.approx(1.0)
    # Class 2 scores above class 1, and both above normal: every region is found at once.
    assert all(best[f"aupro_{x:g}"] == pytest.approx(1.0) for x in FPR_LIMITS)
    worst = anomaly_metrics(wrong.min(axis=(1, 2)), wrong, labels=labels, masks=masks)
    assert all(value == pytest.approx(0.0, abs=1e-12) for value in worst.values())


def test_what_is_undefined_is_left_out():
    maps = np.zeros((3, 4, 4))
    nothing = anomaly_metrics(np.zeros(3), maps, labels=np.zeros(3), masks=np.zeros((3, 4, 4)))
    assert nothing == {}
    assert auroc(np.array([1.0]), np.array([1])) is None


def test_a_defect_that_nobody_marked_counts_for_images_only():
    masks = np.zeros((3, 4, 4))
    masks[1, 0, 0] = 1
    maps = masks.copy()
    maps[2] = 9.0
    found = anomaly_metrics(np.array([0, 1, 2]), maps, labels=np.array([0, 1, 1]), masks=masks)
    assert found["image_auroc"] == found["pixel_auroc"] == 1.0


def test_scores_that_are_not_numbers_are_refused():
    with pytest.raises(ValueError, match="finite"):
        auroc(np.array([0.0, np.nan]), np.array([0, 1]))


def test_two_hundred_large_maps_take_seconds():
    draw = rng(0)
    maps = draw.random((200, 128, 128), dtype=np.float32)
    masks = np.zeros(maps.shape, np.uint8)
    masks[::2, 30:60, 40:70] = 1
    started = time.process_time()
    aupro(maps, masks)
    assert time.process_time() - started < 5.0


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


def test_a_bank_gives_away_who_is_in_it():
    members, others = images(10, seed=1), images(10, seed=2)
    bank = MemoryBank(members.reshape(-1, members.shape[-1]))
    assert nearest_distance_attack(bank, members, others) == pytest.approx(1.0)


def test_a_model_that_scores_all_alike_gives_nothing_away():
    flat = SimpleNamespace(patch_scores=lambda features: np.ones(features.shape[:2]))
    assert nearest_distance_attack(flat, images(5, seed=1), images(9, seed=2)) == 0.5


def test_it_needs_both():
    members = images(5)
    bank = MemoryBank(members.reshape(-1, members.shape[-1]))
    with pytest.raises(ValueError, match="members and others"):
        nearest_distance_attack(bank, members, members[:0])
