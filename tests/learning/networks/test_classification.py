"""Metrics of classifiers against known values."""

from __future__ import annotations

import numpy as np
import pytest

from dp_fedmed.learning.networks.classification import classification_metrics


def test_balanced_accuracy_weighs_classes_and_not_records() -> None:
    logits = np.array([[1.0, 0.0]] * 9 + [[1.0, 0.0]])
    scores = classification_metrics(logits, np.array([0] * 9 + [1]))
    assert scores["accuracy"] == pytest.approx(0.9)
    assert scores["balanced_accuracy"] == pytest.approx(0.5)


def test_auroc_is_left_out_where_a_class_is_missing() -> None:
    assert "auroc" not in classification_metrics(np.zeros((3, 2)), np.zeros(3, dtype=int))
