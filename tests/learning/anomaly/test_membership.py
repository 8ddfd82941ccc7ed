"""The attack on anomaly models: what it finds is an AUROC over members and others."""

from types import SimpleNamespace

import numpy as np
import pytest

from dp_fedmed.learning.anomaly import MemoryBank
from dp_fedmed.learning.anomaly.membership import nearest_distance_attack
from tests.learning.anomaly.patches import images


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
