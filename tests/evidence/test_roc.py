"""The arithmetic of an attack's figures: ROC, intervals, and what (ε, δ) allows."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from dp_fedmed.evidence.calibration import Scored, UsualScores, halves, same_mix
from dp_fedmed.evidence.claim import Claim
from dp_fedmed.evidence.membership import Figures, Fold, figures
from dp_fedmed.evidence.roc import Roc, clopper_pearson, largest_advantage, largest_tpr


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


def test_the_bound_is_what_an_optimal_attack_on_randomised_response_reaches() -> None:
    epsilon = 1.2
    truth = math.exp(epsilon) / (1 + math.exp(epsilon))  # of answering honestly
    assert largest_tpr(1 - truth, epsilon=epsilon, delta=0.0) == pytest.approx(truth)
    assert largest_advantage(epsilon=epsilon, delta=0.0) == pytest.approx(2 * truth - 1)
    grid = np.linspace(0, 1, 10001)
    gap = largest_tpr(grid, epsilon=0.7, delta=0.05) - grid
    assert gap.max() == pytest.approx(largest_advantage(epsilon=0.7, delta=0.05), abs=1e-3)
    assert largest_tpr(0.3, epsilon=1e6, delta=0.0) == 1.0


def judged(shift: float, seed: int, count: int = 2000) -> Figures:
    folds = [
        Fold(drawn(shift, count, count, seed), drawn(shift, count, count, seed + 1000))
        for seed in (seed, seed + 500)
    ]
    return Figures(tuple(folds))


def test_an_attack_within_its_bound_is_not_flagged_and_one_beyond_it_is() -> None:
    claim = Claim(epsilon=0.5, delta=1e-5, source="")
    # The Gaussian mechanism whose optimal attack is a shift of 0.2 has ε < 0.5 at every threshold
    # that 2000 records can resolve; a shift of 1.5 is far beyond it.
    assert not any(judged(0.2, seed).beyond(claim) for seed in range(20))
    assert all(judged(1.5, seed).beyond(claim) for seed in range(5))


def test_at_the_very_bound_false_findings_stay_below_one_in_twenty() -> None:
    epsilon = 1.0
    keep = math.exp(epsilon) / (1 + math.exp(epsilon))
    claim = Claim(epsilon=epsilon, delta=0.0, source="")
    found = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)

        def answers(rng: np.random.Generator = rng) -> Roc:
            jitter = rng.random((2, 400)) * 0.5
            says = rng.random((2, 400)) < np.array([[keep], [1 - keep]])
            return Roc(says[0] + jitter[0], says[1] + jitter[1])

        found += bool(
            Figures((Fold(answers(), answers()), Fold(answers(), answers()))).beyond(claim)
        )
    assert found <= 10


def test_calibration_per_class_removes_what_the_class_explains() -> None:
    rng = np.random.default_rng(3)
    classes = rng.integers(0, 5, 4000)
    hard = 3.0 * classes
    members = Scored(rng.normal(0.7, 1, 2000) - hard[:2000], classes[:2000])
    others = Scored(rng.normal(0.0, 1, 2000) - hard[2000:], classes[2000:])
    plain = figures(members, others, per_class=False, seed=0)
    knowing = figures(members, others, per_class=True, seed=0)
    assert knowing.roc.auc > 0.66 > 0.58 > plain.roc.auc
    assert knowing.advantage > 0.2
    low, high = knowing.advantage_interval
    assert low < knowing.advantage < high


def test_what_is_usual_is_never_learnt_from_the_half_that_is_judged() -> None:
    rng = np.random.default_rng(4)
    classes = np.repeat(np.arange(4), 50)
    members, others = Scored(rng.normal(size=200), classes), Scored(rng.normal(size=200), classes)
    first, second = halves(Scored(np.arange(200.0), classes), seed=0, purpose="attack-others")
    assert set(first.scores) | set(second.scores) == set(range(200))
    before = figures(members, others, per_class=True, seed=0).folds
    for number, half in enumerate((first, second)):
        changed = others.scores.copy()
        changed[half.scores.astype(int)] += 100.0
        after = figures(members, Scored(changed, classes), per_class=True, seed=0).folds
        np.testing.assert_array_equal(after[number].judged.members, before[number].judged.members)
        assert after[number].judged.others.min() > before[number].judged.others.max()


def test_members_and_others_have_the_same_mix_of_classes() -> None:
    first = Scored(np.zeros(100), np.repeat([0, 1, 2], [50, 30, 20]))
    second = Scored(np.zeros(60), np.repeat([0, 1], [15, 45]))
    kept, compared = same_mix(first, second, seed=0)
    assert 2 not in kept.classes
    for part in (kept, compared):
        assert np.mean(part.classes == 0) == pytest.approx(0.25 / 0.55, abs=0.03)


def test_a_class_of_equal_scores_does_not_divide_by_nothing() -> None:
    constant = Scored(np.zeros(20), np.zeros(20, np.int64))
    assert np.isfinite(UsualScores(constant).compared(constant)).all()
