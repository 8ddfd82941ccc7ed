"""Segmentation: Dice and cross entropy per image, Dice and IoU as metrics."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from dp_fedmed.data.records import Records
from dp_fedmed.learning.networks.task import Task, predictions

SMOOTH = 1.0


class Segmentation(Task):
    """One class id per pixel; class 0 is background."""

    def record_losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Pixel cross entropy, soft Dice, or their sum, of each image by itself."""
        if self.objective == "soft_dice":
            return soft_dice(logits, targets)
        pixels = F.cross_entropy(logits, targets, reduction="none").flatten(1).mean(dim=1)
        if self.objective == "cross_entropy":
            return pixels
        return pixels + soft_dice(logits, targets)

    def evaluate(
        self, model: nn.Module, records: Records, device: torch.device
    ) -> dict[str, float]:
        """Mean loss, Dice and IoU over images (and over foreground classes within an image)."""
        if len(records) == 0:
            return {}
        sums = torch.zeros(3, dtype=torch.float64)
        for logits, targets in predictions(model, records, device):
            dice, iou = overlap(logits.argmax(dim=1), targets, num_classes=logits.shape[1])
            losses = self.record_losses(logits, targets)
            sums += torch.stack([losses.double().sum(), dice.sum(), iou.sum()])
        loss, dice_mean, iou_mean = (sums / len(records)).tolist()
        return {"loss": loss, "dice": dice_mean, "iou": iou_mean}


def soft_dice(logits: Tensor, targets: Tensor) -> Tensor:
    """1 − soft Dice of each image, averaged over foreground classes (Milletari et al. 2016)."""
    classes = logits.shape[1]
    odds = logits.softmax(dim=1)[:, 1:].flatten(2)
    foreground = torch.arange(1, classes, device=targets.device)  # F.one_hot is not vectorised
    truth = (targets.flatten(1).unsqueeze(1) == foreground[:, None]).to(odds.dtype)
    shared = (odds * truth).sum(dim=2)
    total = odds.sum(dim=2) + truth.sum(dim=2)
    return (1.0 - (2.0 * shared + SMOOTH) / (total + SMOOTH)).mean(dim=1)


def overlap(predicted: Tensor, targets: Tensor, *, num_classes: int) -> tuple[Tensor, Tensor]:
    """Dice and IoU of each image; a class that neither has counts as full agreement.

    >>> dice, iou = overlap(torch.tensor([[[1, 1]]]), torch.tensor([[[1, 0]]]), num_classes=2)
    >>> round(dice.item(), 3), iou.item()
    (0.667, 0.5)
    """
    dices, ious = [], []
    for c in range(1, num_classes):
        guess, truth = (predicted == c).flatten(1), (targets == c).flatten(1)
        shared = (guess & truth).sum(dim=1).double()
        total = guess.sum(dim=1).double() + truth.sum(dim=1).double()
        empty = total == 0
        dices.append(torch.where(empty, 1.0, 2 * shared / total.clamp(min=1)))
        ious.append(torch.where(empty, 1.0, shared / (total - shared).clamp(min=1)))
    return torch.stack(dices).mean(dim=0), torch.stack(ious).mean(dim=0)


def spread(values: NDArray[Any], most: int = 8) -> NDArray[np.int64]:
    """Positions of a few values from the smallest to the largest, evenly by rank.

    >>> spread(np.array([0.9, 0.1, 0.5, 0.7]), most=3).tolist()
    [1, 3, 0]
    """
    order = np.argsort(values, kind="stable")
    if len(order) > most:
        order = order[np.linspace(0, len(order) - 1, most).round().astype(int)]
    return np.asarray(order, dtype=np.int64)
