"""Losses that keep records apart, metrics against scikit-learn's, and models that diverge."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from dp_fedmed.config import Loss, TaskKind
from dp_fedmed.config.checks import LOSSES
from dp_fedmed.data import DataSet, Records, Target
from dp_fedmed.learning.networks.regression import HUBER_DELTA, evaluation, regression_metrics
from dp_fedmed.learning.networks.task import Task, make_task, to_tensors

CPU = torch.device("cpu")
TARGETS = (Target(low=0.0, high=200.0, unit="mg"), Target(low=-1.0, high=1.0, name="other"))


def task(loss: Loss = Loss.mse) -> Task:
    return make_task("regression", loss)


def some(n: int = 30, columns: int = 1) -> Records:
    rng = np.random.default_rng(0)
    y = rng.uniform(-1.0, 1.0, (n, columns)).astype(np.float32)
    return Records(rng.normal(size=(n, 4)).astype(np.float32), y[:, 0] if columns == 1 else y)


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("loss", LOSSES[TaskKind.regression])
def test_regression_losses_do_not_couple_records(loss: Loss, columns: int) -> None:
    torch.manual_seed(0)
    said, truth = torch.randn(5, columns), to_tensors(some(5, columns), CPU)[1]
    assert truth.dtype == torch.float32
    chosen = task(loss)
    alone = torch.cat([chosen.record_losses(said[i : i + 1], truth[i : i + 1]) for i in range(5)])
    together = chosen.record_losses(said, truth)
    assert together.shape == (5,)
    assert torch.equal(together, alone)
    assert torch.allclose(chosen.loss(said, truth), alone.mean())


def test_losses_have_their_values() -> None:
    said, truth = torch.tensor([[0.5], [0.1]]), torch.tensor([0.0, 0.0])
    assert task(Loss.mse).record_losses(said, truth).tolist() == pytest.approx([0.25, 0.01])
    assert task(Loss.mae).record_losses(said, truth).tolist() == pytest.approx([0.5, 0.1])
    far = HUBER_DELTA * (0.5 - HUBER_DELTA / 2)
    assert task(Loss.huber).record_losses(said, truth).tolist() == pytest.approx([far, 0.005])


def test_class_ids_stay_class_ids() -> None:
    x = np.zeros((2, 3), np.float32)
    assert to_tensors(Records(x, np.array([0, 1], np.uint8)), CPU)[1].dtype == torch.int64


@pytest.mark.parametrize("columns", [1, 3])
def test_metrics_are_scikit_learns(columns: int) -> None:
    from sklearn.metrics import mean_absolute_error, mean_squared_error, r2_score

    rng = np.random.default_rng(3)
    truth = rng.normal(size=(50, columns))
    said = truth + rng.normal(0.0, 0.4, size=truth.shape)
    found = regression_metrics(said, truth)
    assert found["rmse"] == pytest.approx(np.sqrt(mean_squared_error(truth, said)))
    assert found["mae"] == pytest.approx(mean_absolute_error(truth, said))
    assert found["r2"] == pytest.approx(r2_score(truth, said))


class Says(nn.Module):
    """Predicts given values, whatever it sees."""

    def __init__(self, values: Any) -> None:
        super().__init__()
        self.values = torch.as_tensor(np.asarray(values, np.float32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.values[: len(x)].reshape(len(x), -1)


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf, 3e38])
def test_predictions_that_are_no_numbers_leave_metrics_out(broken: float) -> None:
    records = some(10)
    said = records.y.copy()
    said[3] = broken
    found = task().evaluate(Says(said), records, CPU)
    assert all(np.isfinite(list(found.values())))
    assert ("rmse" in found) is bool(np.isfinite(broken))
    data = DataSet(records, records, records, targets=TARGETS[:1])
    (described,) = evaluation(Says(said), data, CPU)["targets"]
    assert described["not_finite"] == (0 if np.isfinite(broken) else 1)
    assert len(described["truth"]) == len(described["predicted"])
    assert np.isfinite(described["predicted"]).all()
    nothing = evaluation(Says(np.full(10, np.nan)), data, CPU)["targets"][0]
    assert (nothing["not_finite"], nothing["metrics"], nothing["truth"]) == (10, {}, [])


def test_without_variation_there_is_no_r2_and_without_records_nothing() -> None:
    flat = Records(np.zeros((4, 4), np.float32), np.full(4, 0.5, np.float32))
    found = task().evaluate(Says(np.zeros(4)), flat, CPU)
    assert "r2" not in found
    assert found["rmse"] == pytest.approx(0.5)
    assert task().evaluate(Says(np.zeros(0)), flat.subset(np.array([], np.int64)), CPU) == {}


def test_an_evaluation_is_in_the_targets_own_units() -> None:
    records = some(12, columns=2)
    data = DataSet(records, records, records, targets=TARGETS)
    first, second = evaluation(Says(records.y + np.float32(0.1)), data, CPU)["targets"]
    assert first["metrics"]["rmse"] == pytest.approx(10.0, rel=1e-4)  # a tenth of half of 200 mg
    assert second["metrics"]["mae"] == pytest.approx(0.1, rel=1e-4)
    assert (first["unit"], first["range"], second["name"]) == ("mg", [0.0, 200.0], "other")
    assert np.allclose(first["truth"], 100.0 + 100.0 * records.y[:, 0], rtol=1e-4)
