"""The seam between a federation and what it learns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from dp_fedmed.config import TaskConfig, TaskKind
from dp_fedmed.data.records import Records

EVALUATION_BATCH = 256


class Task(ABC):
    """A loss that keeps records apart, and the metrics that judge a model."""

    def __init__(self, config: TaskConfig) -> None:
        self.config = config

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


def make_task(config: TaskConfig) -> Task:
    """The task that the configuration names."""
    if config.kind is TaskKind.segmentation:
        from dp_fedmed.tasks.segmentation import Segmentation

        return Segmentation(config)
    from dp_fedmed.tasks.classification import Classification

    return Classification(config)


def to_input(x: Tensor) -> Tensor:
    """Records as a network sees them: bytes become [-1, 1] by a public constant.

    >>> to_input(torch.tensor([[0, 255]], dtype=torch.uint8))
    tensor([[-1.,  1.]])
    """
    if x.dtype == torch.uint8:
        return x.float().div_(127.5).sub_(1.0)
    return x


def to_tensors(records: Records, device: torch.device) -> tuple[Tensor, Tensor]:
    """Records and their targets on the device; images stay bytes until `to_input`."""
    x, y = (np.require(values, requirements="W") for values in (records.x, records.y))
    return torch.from_numpy(x).to(device), torch.from_numpy(y).to(device).long()


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
