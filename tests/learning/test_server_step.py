"""The weighted mean of answers."""

from __future__ import annotations

import numpy as np
import pytest

from dp_fedmed.learning.server_step import SharedModel, WeightedMean


def test_answers_count_by_their_weight_and_keep_their_shape() -> None:
    mean = WeightedMean({"w": np.zeros((2, 2), np.float32), "b": np.zeros(())})
    for value, weight in ((1.0, 1.0), (4.0, 3.0)):
        mean.add({"w": np.full((2, 2), value, np.float32), "b": np.array(value)}, weight)
    result = mean.result()
    assert result is not None
    assert result["w"].shape == (2, 2)
    assert result["w"] == pytest.approx(np.full((2, 2), 3.25))
    assert float(result["b"]) == 3.25


def test_without_weight_there_is_no_mean() -> None:
    mean = WeightedMean({"w": np.zeros(3)})
    assert mean.result() is None
    mean.add({"w": np.ones(3)}, 0.0)
    assert mean.result() is None


def test_sums_are_float64_also_beyond_one_block() -> None:
    size = WeightedMean.BLOCK + 5
    mean = WeightedMean({"w": np.zeros(size, np.float32)})
    rng = np.random.default_rng(0)
    answers = [rng.normal(size=size).astype(np.float32) for _ in range(3)]
    for answer in answers:
        mean.add({"w": answer}, 7.0)
    result = mean.result()
    assert result is not None
    exact = sum(7.0 * answer.astype(np.float64) for answer in answers) / 21.0
    assert np.array_equal(result["w"], exact)


def test_a_shared_model_is_one_for_all() -> None:
    model = {"w": np.ones(2)}
    assert SharedModel().part(model, "anybody") is model
    assert SharedModel().whole(model, "anybody") is model
    assert SharedModel.is_shared
