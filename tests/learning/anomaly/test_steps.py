"""What the server makes of rows: one bank of a fixed size."""

import numpy as np
import pytest

from dp_fedmed.federation.plan import ClientPlan
from dp_fedmed.learning.anomaly.detector import BANK
from dp_fedmed.learning.anomaly.steps import BankStep, NoisyRowsStep
from dp_fedmed.planning.plan import largest_sigma

MODEL = {"map_offset": np.ones(2, np.float32), BANK: np.zeros((4, 2), np.float32)}


def rows(*values):
    return {BANK: np.array([[v, 0.0] for v in values], np.float32)}


@pytest.mark.parametrize("step", [BankStep(seed=0), NoisyRowsStep(seed=0)])
def test_a_bank_keeps_its_size_whoever_sends_how_much(step):
    collector = step.collector(MODEL)
    assert collector.result() is None
    collector.add(rows(9.0, 9.0, 9.0, 9.0), weight=0.0)
    assert collector.result() is None, "a client without images has no rows"
    collector.add(rows(0.0, 1.0, 2.0, 3.0), weight=1.0)
    collector.add(rows(4.0, 5.0, 6.0, 7.0), weight=100.0)
    after = step.step(MODEL, collector.result())
    assert after[BANK].shape == (4, 2)
    assert set(after[BANK][:, 0].tolist()) <= set(range(8))
    assert after["map_offset"] is MODEL["map_offset"]
    assert step.moments() == {}


def test_a_k_center_takes_rows_that_are_far_apart_and_a_sample_any():
    union, sample = (kind(seed=0).collector(MODEL) for kind in (BankStep, NoisyRowsStep))
    for collector in (union, sample):
        collector.add(rows(0.0, 0.01, 0.02, 100.0), weight=1.0)
        collector.add(rows(0.03, 0.04, 50.0, 150.0), weight=1.0)
    assert {50.0, 100.0, 150.0} <= set(union.result()[BANK][:, 0].tolist())
    assert len(np.unique(sample.result()[BANK], axis=0)) == 4


def test_rows_that_are_too_few_are_repeated():
    sample = NoisyRowsStep(seed=0).collector(MODEL)
    sample.add(rows(1.0, 1.0, 2.0, 2.0), weight=1.0)
    assert sorted(sample.result()[BANK][:, 0].tolist()) == [1.0, 1.0, 2.0, 2.0]


def test_one_noise_for_all_is_the_largest():
    plans = {
        str(sigma): ClientPlan(
            records=10, sample_rate=1.0, steps=1, participations=None, noise_multiplier=sigma
        )
        for sigma in (1.0, 4.0, 2.0)
    }
    assert largest_sigma(plans) == 4.0
