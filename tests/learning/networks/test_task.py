"""What every task of a network has."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from dp_fedmed.assemble import make_task as configured
from dp_fedmed.config import METRICS, TaskKind, compose
from dp_fedmed.config.checks import LOSSES
from dp_fedmed.data.records import Records
from dp_fedmed.learning.networks.task import TASKS, confusion_matrix, make_task

CPU = torch.device("cpu")


def test_no_records_give_no_metrics() -> None:
    nothing = Records(np.zeros((0, 4), np.float32), np.zeros(0, np.int64))
    chosen = make_task("classification", "cross_entropy")
    assert chosen.evaluate(nn.Linear(4, 2), nothing, CPU) == {}


def test_a_confusion_matrix_counts_pixels_too() -> None:
    truth = np.array([[[0, 1], [2, 2]]], np.uint8)
    predicted = np.array([[[0, 2], [2, 1]]], np.int64)
    found = confusion_matrix(truth, predicted, num_classes=3)
    assert found.tolist() == [[1, 0, 0], [0, 0, 1], [0, 1, 1]]


@pytest.mark.parametrize(
    ("kind", "objective"), [(kind, loss) for kind in TASKS for loss in LOSSES[TaskKind(kind)]]
)
def test_the_configured_task_is_the_one_of_its_kind_and_loss(kind: str, objective: str) -> None:
    words = [
        f"task.kind={kind}",
        f"task.loss={objective}",
        f"task.metric={METRICS[TaskKind(kind)][0]}",
    ]
    chosen, made = make_task(kind, objective), configured(compose(["privacy=none", *words]))
    assert type(chosen) is type(made)
    assert chosen.objective == made.objective == objective
