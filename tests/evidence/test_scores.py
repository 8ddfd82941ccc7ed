"""What is usual for a class, and comparing like with like."""

from __future__ import annotations

import numpy as np
import pytest

from dp_fedmed.evidence.scores import Scored, UsualScores, same_mix


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
