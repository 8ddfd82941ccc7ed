"""Regression: squared, absolute and Huber losses; RMSE, MAE and R² as metrics.

Targets are scaled by public constants (`Target.scaled`), and so are losses, RMSE and MAE in
`metrics.jsonl`: 1 is half of the target's public range. `evaluation.json` has them in its unit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from dp_fedmed.data.records import DataSet, Records
from dp_fedmed.learning.networks.task import Task, predictions

#: Scaled errors beyond this count in proportion: a sixteenth of the public range.
HUBER_DELTA = 0.125
MOST_POINTS = 500


class Regression(Task):
    """One number per record, or k of them."""

    def record_losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss of each record by itself; of k numbers, their mean."""
        truth = targets.reshape(logits.shape).to(logits.dtype)
        if self.objective == "mae":
            each = (logits - truth).abs()
        elif self.objective == "huber":
            each = F.huber_loss(logits, truth, reduction="none", delta=HUBER_DELTA)
        else:
            each = (logits - truth).square()
        return each.mean(dim=1)

    def evaluate(
        self, model: nn.Module, records: Records, device: torch.device
    ) -> dict[str, float]:
        """Loss, RMSE and MAE of scaled targets, and R² where targets differ."""
        if len(records) == 0:
            return {}
        predicted, truth = _both(model, records, device)
        losses = self.record_losses(torch.from_numpy(predicted), torch.from_numpy(truth))
        found = {"loss": float(losses.mean())} | regression_metrics(predicted, truth)
        return {name: value for name, value in found.items() if np.isfinite(value)}


def regression_metrics(
    predicted: NDArray[np.float64], truth: NDArray[np.float64]
) -> dict[str, float]:
    """RMSE, MAE and R² (uniform mean over columns) of (n, k) numbers.

    What a prediction that is no number makes undefined is NaN; R² is left out where a column of the
    truth does not vary.

    >>> found = regression_metrics(np.array([[1.0], [2.0]]), np.array([[1.0], [4.0]]))
    >>> round(found["rmse"], 3), found["mae"], round(found["r2"], 3)
    (1.414, 1.0, 0.111)
    """
    with np.errstate(all="ignore"):
        error = predicted - truth
        squares, spread = np.square(error), np.square(truth - truth.mean(axis=0))
        found = {"rmse": float(np.sqrt(squares.mean())), "mae": float(np.abs(error).mean())}
        if (spread.sum(axis=0) > 0.0).all():
            found["r2"] = float((1.0 - squares.sum(axis=0) / spread.sum(axis=0)).mean())
    return found


def evaluation(model: nn.Module, data: DataSet, device: torch.device) -> dict[str, Any]:
    """What `evaluation.json` holds of the test records: figures and points in each target's unit.

    At most 500 records are shown as points; a prediction that is no number is counted instead.
    """
    predicted, truth = _both(model, data.test, device)
    described = []
    for column, target in enumerate(data.targets):
        said, is_so = (target.in_unit(values[:, column]) for values in (predicted, truth))
        finite = np.isfinite(said)
        said, is_so = said[finite], is_so[finite]
        figures = regression_metrics(said[:, None], is_so[:, None]) if len(said) else {}
        described.append(
            {
                "name": target.name,
                "unit": target.unit,
                "range": [target.low, target.high],
                "not_finite": int((~finite).sum()),
                "metrics": {name: value for name, value in figures.items() if np.isfinite(value)},
                "truth": [float(f"{v:.6g}") for v in is_so[:MOST_POINTS]],
                "predicted": [float(f"{v:.6g}") for v in said[:MOST_POINTS]],
            }
        )
    return {"schema": 1, "split": "test", "counted": "records", "targets": described}


def _both(
    model: nn.Module, records: Records, device: torch.device
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(predicted, true) scaled numbers, (n, k) each."""
    pairs = list(predictions(model, records, device))
    said = torch.cat([pair[0] for pair in pairs]).double()
    return said.numpy(), torch.cat([pair[1] for pair in pairs]).double().reshape(said.shape).numpy()
