"""The arithmetic of a ROC: its curve and its intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from dp_fedmed.evidence.roc import Roc, clopper_pearson


def drawn(shift: float, members: int, others: int, seed: int) -> Roc:
    rng = np.random.default_rng(seed)
    return Roc(rng.normal(shift, 1, members), rng.normal(0, 1, others))


def test_auc_is_the_chance_to_pick_the_member_and_ties_count_half() -> None:
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(0)
    members, others = rng.integers(0, 6, 40).astype(float), rng.integers(0, 5, 70).astype(float)
    truth = np.repeat([1, 0], [40, 70])
    expected = roc_auc_score(truth, np.concatenate([members, others]))
    assert Roc(members, others).auc == pytest.approx(expected)


def test_the_curve_begins_and_ends_in_its_corners_and_never_falls() -> None:
    fpr, tpr = drawn(1.0, 50, 80, seed=1).points
    assert (fpr[0], tpr[0], fpr[-1], tpr[-1]) == (0.0, 0.0, 1.0, 1.0)
    assert (np.diff(fpr) >= 0).all()
    assert (np.diff(tpr) >= 0).all()


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    truth = float(norm.cdf(0.5 / math.sqrt(2)))
    covered = 0
    for seed in range(300):
        low, high = drawn(0.5, 60, 90, seed).auc_interval()
        covered += low <= truth <= high
    assert 0.91 <= covered / 300 <= 0.985
    low, high = clopper_pearson(3, 10)
    assert (round(low, 4), round(high, 4)) == (0.0667, 0.6525)  # Clopper & Pearson's own table


def test_a_perfect_attack_has_an_interval_that_says_how_few_records_there_were() -> None:
    low, high = Roc(np.array([2.0, 3.0, 4.0]), np.array([0.0, 1.0, 1.5])).auc_interval()
    assert low < 0.35
    assert high == 1.0
