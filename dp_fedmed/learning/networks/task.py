"""What a network is trained for: a loss that keeps records apart, and the metrics that judge it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dp_fedmed.data.records import Records

EVALUATION_BATCH = 256


class Task(ABC):
    """A loss that keeps records apart, and the metrics that judge a model.

    Args:
        objective: the loss, by name.
    """

    def __init__(self, objective: str) -> None:
        self.objective = objective

    @abstractmethod
    def record_losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        """One loss per record, shape (batch,): no record's loss depends on another record."""

    @abstractmethod
    def evaluate(
        self, model: nn.Module, records: Records, device: torch.device
    ) -> dict[str, float]:
        """Metrics of a model on records; a metric that is undefined there is left out."""

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The batch loss: the mean of the records' losses."""
        return self.record_losses(logits, targets).mean()


#: Import paths, so that one task does not import what another needs.
TASKS: dict[str, str] = {
    "classification": "dp_fedmed.learning.networks.classification.Classification",
    "segmentation": "dp_fedmed.learning.networks.segmentation.Segmentation",
    "regression": "dp_fedmed.learning.networks.regression.Regression",
}


def make_task(kind: str, objective: str) -> Task:
    """A task by its kind, with one of its losses."""
    module, name = TASKS[kind].rsplit(".", 1)
    task: Task = getattr(import_module(module), name)(objective)
    return task


def to_input(x: Tensor) -> Tensor:
    """Records as a network sees them: bytes become [-1, 1] by a public constant.

    >>> to_input(torch.tensor([[0, 255]], dtype=torch.uint8))
    tensor([[-1.,  1.]])
    """
    if x.dtype == torch.uint8:
        return x.float().div_(127.5).sub_(1.0)
    return x


def to_tensors(records: Records, device: torch.device) -> tuple[Tensor, Tensor]:
    """Records and their targets on the device; images stay bytes until `to_input`.

    Class ids become int64; targets of a regression stay the numbers that they are.
    """
    x, y = (np.require(values, requirements="W") for values in (records.x, records.y))
    targets = torch.from_numpy(y).to(device)
    return torch.from_numpy(x).to(device), targets if records.is_regression else targets.long()


def predictions(
    model: nn.Module, records: Records, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """(logits, targets) batch by batch, on the CPU, without gradients."""
    model.eval()
    inputs, targets = to_tensors(records, torch.device("cpu"))
    with torch.no_grad():
        for start in range(0, len(records), EVALUATION_BATCH):
            part = slice(start, start + EVALUATION_BATCH)
            yield model(to_input(inputs[part].to(device))).cpu(), targets[part]


def confusion_matrix(
    truth: NDArray[Any], predicted: NDArray[Any], *, num_classes: int
) -> NDArray[np.int64]:
    """How often each class (row) was taken for which (column).

    >>> confusion_matrix(np.array([0, 1, 1]), np.array([0, 1, 0]), num_classes=2).tolist()
    [[1, 0], [1, 1]]
    """
    pairs = truth.astype(np.int64).ravel() * num_classes + predicted.ravel()
    return np.bincount(pairs, minlength=num_classes**2).reshape(num_classes, num_classes)
