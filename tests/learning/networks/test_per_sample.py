"""Gradients of one record each: clipped, counted, and of a network that remembers nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from dp_fedmed.learning.networks.per_sample import (
    NetworkKeepsState,
    PerSampleGradients,
    RowsNotRecords,
    refuse_changed,
    state_of,
)
from dp_fedmed.privacy.mechanisms.dp_sgd import clip_factors
from tests.learning.networks.test_record_check import C, FoldsPatches, X, Y, summing, task


def test_rows_are_counted_on_every_batch() -> None:
    """Also where nobody checked before: the sum is not touched."""
    gradients = PerSampleGradients(FoldsPatches(), task(), "hooks")
    optimizer = summing(gradients)
    with pytest.raises(RowsNotRecords, match=r"layer 'patch' \(Linear\) has 96 gradient rows"):
        gradients.add(optimizer, X.float(), Y)
    assert all(float(total.abs().sum()) == 0.0 for total in optimizer.totals)
    gradients.close()


def test_no_gradient_is_made_longer_and_none_stays_longer_than_c() -> None:
    norms = np.array([0.0, 0.1, C, 10.0, 1e300, np.inf, np.nan])
    factors = clip_factors(norms, C)
    assert factors[:3].tolist() == [1.0, 1.0, 1.0]
    assert (factors[:5] * norms[:5]).max() <= C
    assert factors[5:].tolist() == [0.0, 0.0]


def test_a_network_that_changed_is_named_with_what_did() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    before = state_of(model)
    model(torch.ones(1, 2))
    refuse_changed(before, model)
    model[0].seen = []
    before = state_of(model)
    model[0].seen.append(1.0)
    with pytest.raises(NetworkKeepsState, match=r"'0\.seen' changes in a training pass"):
        refuse_changed(before, model)
    before = state_of(model)
    with torch.no_grad():
        model[0].bias.add_(0.0)
    with pytest.raises(NetworkKeepsState, match=r"'0\.bias'"):
        refuse_changed(before, model)


def test_an_open_choice_is_settled_before() -> None:
    with pytest.raises(ValueError, match="must be settled first"):
        PerSampleGradients(FoldsPatches(), task(), "auto")
