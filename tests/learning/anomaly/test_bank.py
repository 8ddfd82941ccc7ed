from itertools import pairwise

import numpy as np
import pytest

from dp_fedmed.learning.anomaly import (
    MemoryBank,
    power_mean,
)


def rng(seed=0):
    return np.random.Generator(np.random.Philox(seed))


def points(n=400, d=16, seed=0):
    return rng(seed).standard_normal((n, d)).astype(np.float32)


@pytest.mark.parametrize("use_faiss", [False, True])
@pytest.mark.parametrize("k", [1, 5])
def test_nearest_neighbours_are_exact(k, use_faiss):
    if use_faiss:
        pytest.importorskip("faiss")
    bank, queries = points(300), points(5000, seed=1)
    distance, index = MemoryBank(bank, use_faiss=use_faiss).nearest(queries, k)
    gaps = np.linalg.norm(queries[:200, None].astype(np.float64) - bank[None], axis=2)
    assert np.allclose(distance[:200], np.sort(gaps, axis=1)[:, :k], atol=1e-5)
    assert np.allclose(np.take_along_axis(gaps, index[:200], 1), distance[:200], atol=1e-5)


def test_a_row_of_the_bank_is_at_distance_zero():
    bank = points(50) + 1000
    assert MemoryBank(bank).nearest(bank)[0].max() == 0.0


def test_the_score_is_that_of_the_paper():
    bank, patches = points(40, d=4), 2 * points(30, d=4, seed=2)
    score, distances = MemoryBank(bank).score(patches, neighbours=5, power=np.inf)
    gaps = np.linalg.norm(patches[:, None] - bank[None], axis=2)
    worst = gaps.min(axis=1).argmax()
    star = gaps[worst].argmin()
    around = np.argsort(np.linalg.norm(bank - bank[star], axis=1))[:5]
    soft = np.exp(gaps[worst, star]) / np.exp(gaps[worst, around]).sum()
    assert score == pytest.approx((1 - soft) * gaps[worst, star], rel=1e-4)
    assert np.allclose(distances, gaps.min(axis=1), atol=1e-5)


def test_the_weight_stays_finite_for_far_patches():
    bank = points(40, d=4)
    score, _ = MemoryBank(bank).score(np.full((3, 4), 1e4, np.float32))
    assert np.isfinite(score)
    assert score > 0


def test_without_neighbours_the_score_is_the_power_mean():
    bank, patches = points(40), points(9, seed=3)
    score, distances = MemoryBank(bank).score(patches, neighbours=0, power=1.0)
    assert score == pytest.approx(distances.mean(), rel=1e-5)


def test_power_means_lie_between_mean_and_maximum():
    scores = np.abs(points(5, 20)).astype(np.float64)
    means = [power_mean(scores, power) for power in (1.0, 2.0, 10.0, np.inf)]
    assert all((a <= b + 1e-12).all() for a, b in pairwise(means))
    assert np.array_equal(means[-1], scores.max(axis=1))
    assert power_mean(np.zeros((2, 3)), 4.0).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("rows", [np.zeros((0, 3)), np.zeros(3), np.array([[np.inf]])])
def test_a_bank_of_nothing_is_refused(rows):
    with pytest.raises(ValueError, match="bank"):
        MemoryBank(rows)
