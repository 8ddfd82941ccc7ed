"""Losses that keep records apart, metrics against known values, local training."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from dp_fedmed.config import Loss, OptimizerName, TaskConfig, TaskKind, TrainingConfig
from dp_fedmed.config.checks import LOSSES
from dp_fedmed.data.records import Records
from dp_fedmed.learning.networks.classification import classification_metrics
from dp_fedmed.learning.networks.local_training import batches, train_locally
from dp_fedmed.learning.networks.segmentation import overlap, soft_dice
from dp_fedmed.learning.networks.task import Task, make_task
from dp_fedmed.privacy.streams.reproducible import stream

CPU = torch.device("cpu")


def task(kind: TaskKind, loss: Loss) -> Task:
    metric = "dice" if kind is TaskKind.segmentation else "accuracy"
    return make_task(TaskConfig(kind=kind, loss=loss, metric=metric))


@pytest.mark.parametrize("loss", LOSSES[TaskKind.segmentation])
def test_segmentation_losses_do_not_couple_records(loss: Loss) -> None:
    torch.manual_seed(0)
    logits, targets = torch.randn(4, 3, 8, 8), torch.randint(3, (4, 8, 8))
    chosen = task(TaskKind.segmentation, loss)
    alone = torch.cat(
        [chosen.record_losses(logits[i : i + 1], targets[i : i + 1]) for i in range(4)]
    )
    assert torch.allclose(chosen.record_losses(logits, targets), alone, atol=1e-6)
    assert torch.allclose(chosen.loss(logits, targets), alone.mean(), atol=1e-6)


def test_soft_dice_is_zero_when_sure_and_right_and_one_when_sure_and_wrong() -> None:
    targets = torch.tensor([[[0, 1], [1, 1]]])
    right = 50.0 * torch.stack([1.0 - targets, targets.float()], dim=1)
    assert soft_dice(right, targets).item() == pytest.approx(0.0, abs=1e-5)
    wrong = soft_dice(-right, targets).item()
    assert wrong == pytest.approx(1 - 1 / (3 + 1 + 1), abs=1e-5)


def test_overlap_counts_two_empty_masks_as_agreement() -> None:
    empty = torch.zeros(1, 4, 4, dtype=torch.long)
    dice, iou = overlap(empty, empty, num_classes=2)
    assert dice.item() == iou.item() == 1.0


def test_overlap_agrees_with_scikit_learn() -> None:
    from sklearn.metrics import f1_score, jaccard_score

    torch.manual_seed(0)
    guess, truth = torch.randint(2, (1, 9, 9)), torch.randint(2, (1, 9, 9))
    dice, iou = overlap(guess, truth, num_classes=2)
    assert dice.item() == pytest.approx(f1_score(truth.ravel(), guess.ravel()))
    assert iou.item() == pytest.approx(jaccard_score(truth.ravel(), guess.ravel()))


def test_balanced_accuracy_weighs_classes_and_not_records() -> None:
    logits = np.array([[1.0, 0.0]] * 9 + [[1.0, 0.0]])
    scores = classification_metrics(logits, np.array([0] * 9 + [1]))
    assert scores["accuracy"] == pytest.approx(0.9)
    assert scores["balanced_accuracy"] == pytest.approx(0.5)


def test_auroc_is_left_out_where_a_class_is_missing() -> None:
    assert "auroc" not in classification_metrics(np.zeros((3, 2)), np.zeros(3, dtype=int))


def test_no_records_give_no_metrics() -> None:
    nothing = Records(np.zeros((0, 4), np.float32), np.zeros(0, np.int64))
    chosen = task(TaskKind.classification, Loss.cross_entropy)
    assert chosen.evaluate(nn.Linear(4, 2), nothing, CPU) == {}


def blobs(n: int = 40) -> Records:
    rng = np.random.default_rng(0)
    y = np.arange(n) % 2
    x = rng.normal(size=(n, 4)) + 3.0 * y[:, None]
    return Records(x.astype(np.float32), y.astype(np.int64))


def fit(config: TrainingConfig, records: Records | None = None) -> tuple[nn.Module, int]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))
    result = train_locally(
        model,
        blobs() if records is None else records,
        task=task(TaskKind.classification, Loss.cross_entropy),
        config=config,
        rng=stream(0, "test"),
        device=CPU,
    )
    return model, result.steps


@pytest.mark.parametrize("optimizer", list(OptimizerName))
def test_every_optimizer_learns_and_differs_from_the_others(optimizer: OptimizerName) -> None:
    config = TrainingConfig(optimizer=optimizer, lr=0.05, local_epochs=10, weight_decay=0.01)
    model, _ = fit(config)
    chosen = task(TaskKind.classification, Loss.cross_entropy)
    assert chosen.evaluate(model, blobs(), CPU)["accuracy"] > 0.95
    others = [o for o in OptimizerName if o is not optimizer]
    for other in others:
        changed, _ = fit(dataclasses.replace(config, optimizer=other))
        assert not torch.equal(model[0].weight, changed[0].weight)  # type: ignore[index]


def test_steps_are_epochs_times_batches_or_as_given() -> None:
    assert fit(TrainingConfig(batch_size=16, local_epochs=2))[1] == 6
    assert fit(TrainingConfig(batch_size=16, local_steps=7))[1] == 7
    assert fit(TrainingConfig(batch_size=1000))[1] == 1


def test_an_epoch_shows_every_record_once() -> None:
    seen = torch.cat(list(batches(23, TrainingConfig(batch_size=5), stream(0, "x"))))
    assert sorted(seen.tolist()) == list(range(23))


def test_a_client_without_records_takes_no_step() -> None:
    nothing = Records(np.zeros((0, 4), np.float32), np.zeros(0, np.int64))
    assert fit(TrainingConfig(), nothing)[1] == 0


def test_training_depends_on_its_stream_and_not_on_global_randomness() -> None:
    first, _ = fit(TrainingConfig(local_epochs=2))
    second, _ = fit(TrainingConfig(local_epochs=2))
    assert torch.equal(first[0].weight, second[0].weight)  # type: ignore[index]
