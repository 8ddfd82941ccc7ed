"""Classification: cross entropy, accuracy, balanced accuracy, AUROC and F1."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dp_fedmed.data.records import Records
from dp_fedmed.learning.networks.task import Task, predictions


class Classification(Task):
    """One class id per record."""

    def record_losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Cross entropy of each record."""
        return F.cross_entropy(logits, targets, reduction="none")

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The mean of the records' losses, in one operation."""
        return F.cross_entropy(logits, targets)

    def evaluate(
        self, model: nn.Module, records: Records, device: torch.device
    ) -> dict[str, float]:
        """Loss, accuracy, balanced accuracy, macro F1, and AUROC where every class is present."""
        if len(records) == 0:
            return {}
        pairs = list(predictions(model, records, device))
        logits = torch.cat([pair[0] for pair in pairs])
        targets = torch.cat([pair[1] for pair in pairs])
        loss = float(self.record_losses(logits, targets).double().mean())
        return {"loss": loss} | classification_metrics(logits.numpy(), targets.numpy())


def classification_metrics(logits: np.ndarray, targets: np.ndarray) -> dict[str, float]:
    """Accuracy, balanced accuracy, macro F1 and AUROC (one-vs-rest, macro) from logits.

    >>> scores = classification_metrics(np.array([[2.0, 0.0], [0.0, 2.0]]), np.array([0, 1]))
    >>> scores["accuracy"], scores["auroc"]
    (1.0, 1.0)
    """
    from sklearn.metrics import f1_score, roc_auc_score

    predicted = logits.argmax(axis=1)
    classes = np.unique(targets)
    recalls = [float((predicted[targets == c] == c).mean()) for c in classes]
    scores = {
        "accuracy": float((predicted == targets).mean()),
        "balanced_accuracy": float(np.mean(recalls)),
        "f1": float(f1_score(targets, predicted, average="macro", zero_division=0.0)),
    }
    if len(classes) == logits.shape[1] > 1 and np.isfinite(logits).all():
        shifted = np.exp(logits - logits.max(axis=1, keepdims=True), dtype=np.float64)
        odds = shifted / shifted.sum(axis=1, keepdims=True)
        positive = odds[:, 1] if odds.shape[1] == 2 else odds
        scores["auroc"] = float(roc_auc_score(targets, positive, multi_class="ovr"))
    return scores
