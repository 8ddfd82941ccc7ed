"""Losses that keep records apart, and overlap against known values."""

from __future__ import annotations

import pytest
import torch

from dp_fedmed.config import Loss, TaskKind
from dp_fedmed.config.checks import LOSSES
from dp_fedmed.learning.networks.segmentation import overlap, soft_dice
from dp_fedmed.learning.networks.task import make_task


@pytest.mark.parametrize("loss", LOSSES[TaskKind.segmentation])
def test_segmentation_losses_do_not_couple_records(loss: Loss) -> None:
    torch.manual_seed(0)
    logits, targets = torch.randn(4, 3, 8, 8), torch.randint(3, (4, 8, 8))
    chosen = make_task("segmentation", loss)
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
