"""The memory bank: exact neighbours, and a k-center that is exact, seeded and linear in memory."""

import tracemalloc
from itertools import pairwise

import numpy as np
import pytest

from dp_fedmed.learning.anomaly import (
    MemoryBank,
    coreset_size,
    greedy_k_center,
    merge_banks,
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


def slow_k_center(rows, size, start):
    chosen = [start]
    while len(chosen) < size:
        gaps = np.linalg.norm(rows[:, None].astype(np.float64) - rows[chosen], axis=2).min(axis=1)
        chosen.append(int(gaps.argmax()))
    return chosen


def cover(rows, chosen):
    return np.linalg.norm(rows[:, None] - rows[chosen][None], axis=2).min(axis=1).max()


@pytest.mark.parametrize("start", [0, 7])
def test_selection_is_greedy_k_center(start):
    rows = points()
    chosen = greedy_k_center(rows, 40, start=start, projection=None)
    assert chosen.tolist() == slow_k_center(rows, 40, start)


def test_far_from_the_origin_the_selection_is_the_same():
    rows = points()
    moved = rows + np.float32(100.0)
    expected = slow_k_center(moved, 20, 0)
    assert greedy_k_center(moved, 20, start=0, projection=None).tolist() == expected


def test_the_start_is_part_of_the_coreset_and_no_row_comes_twice():
    rows = np.repeat(points(20), 5, axis=0)
    chosen = greedy_k_center(rows, 60, start=13)
    assert chosen[0] == 13
    assert len(set(chosen.tolist())) == 60


def test_projection_is_for_selection_only_and_covers_nearly_as_well():
    rows = points(n=1500, d=64)
    exact = cover(rows, greedy_k_center(rows, 100, start=0, projection=None))
    projected = cover(rows, greedy_k_center(rows, 100, start=0, projection=32))
    drawn = cover(rows, rng(1).choice(1500, 100, replace=False))
    assert projected < 1.15 * exact
    assert exact < drawn


def test_the_seed_decides():
    rows = points()
    assert greedy_k_center(rows, 9, seed=1).tolist() == greedy_k_center(rows, 9, seed=1).tolist()
    assert greedy_k_center(rows, 9, seed=1).tolist() != greedy_k_center(rows, 9, seed=2).tolist()


def test_progress_counts_to_the_end():
    seen = []
    greedy_k_center(points(), 50, progress=lambda done, of: seen.append((done, of)))
    assert seen[-1] == (50, 50)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_extra_memory_is_linear():
    rows = points(n=40_000, d=16)
    tracemalloc.start()
    greedy_k_center(rows, 50, projection=None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # A centred copy and a few vectors; the N×k distances alone would be 8 MB.
    assert peak < rows.nbytes + 8 * 40_000 * 4


def test_everything_is_chosen_when_asked_for_more_than_there_is():
    assert greedy_k_center(points(5), 9).tolist() == [0, 1, 2, 3, 4]


def test_rows_that_are_not_finite_are_refused():
    rows = points(9)
    rows[3, 3] = np.nan
    with pytest.raises(ValueError, match="finite"):
        greedy_k_center(rows, 3)


def test_sizes():
    assert coreset_size(1000, ratio=0.01) == 10
    for wrong in ({}, {"ratio": 0.1, "size": 5}, {"ratio": 0.0}, {"ratio": 1.5}, {"size": 0}):
        with pytest.raises(ValueError, match="coreset_"):
            coreset_size(1000, **wrong)


def test_merged_banks_cover_every_client():
    clients = [points(300, seed=i) + 20 * i for i in range(3)]
    banks = [rows[greedy_k_center(rows, 60)] for rows in clients]
    merged = merge_banks(banks, 45)
    assert merged.shape == (45, 16)
    for bank in banks:
        assert any((row == bank).all(axis=1).any() for row in merged)
    every = np.concatenate(clients)
    own = max(cover(rows, greedy_k_center(rows, 60)) for rows in clients)
    union = np.concatenate(banks)
    reach = np.linalg.norm(union[:, None] - merged[None], axis=2).min(axis=1).max()
    gaps = np.linalg.norm(every[:, None] - merged[None], axis=2).min(axis=1).max()
    assert gaps <= own + reach + 1e-4
