"""An attack's figures: beyond a bound only where it is broken, and judged on fresh records."""

from __future__ import annotations

import math

import numpy as np

from dp_fedmed.evidence.claim import Claim
from dp_fedmed.evidence.membership import Figures, Fold, figures
from dp_fedmed.evidence.roc import Roc
from dp_fedmed.evidence.scores import Scored, halves


def drawn(shift: float, members: int, others: int, seed: int) -> Roc:
    rng = np.random.default_rng(seed)
    return Roc(rng.normal(shift, 1, members), rng.normal(0, 1, others))


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
