"""What every task of a network has."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from dp_fedmed.config import Loss, TaskConfig, TaskKind
from dp_fedmed.data.records import Records
from dp_fedmed.learning.networks.task import Task, confusion_matrix, make_task

CPU = torch.device("cpu")


def task(kind: TaskKind, loss: Loss) -> Task:
    metric = "dice" if kind is TaskKind.segmentation else "accuracy"
    return make_task(TaskConfig(kind=kind, loss=loss, metric=metric))


def test_no_records_give_no_metrics() -> None:
    nothing = Records(np.zeros((0, 4), np.float32), np.zeros(0, np.int64))
    chosen = task(TaskKind.classification, Loss.cross_entropy)
    assert chosen.evaluate(nn.Linear(4, 2), nothing, CPU) == {}


def test_a_confusion_matrix_counts_pixels_too() -> None:
    truth = np.array([[[0, 1], [2, 2]]], np.uint8)
    predicted = np.array([[[0, 2], [2, 1]]], np.int64)
    found = confusion_matrix(truth, predicted, num_classes=3)
    assert found.tolist() == [[1, 0, 0], [0, 0, 1], [0, 1, 1]]
