"""A network's weights as named arrays, and back."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from dp_fedmed.learning.networks.state import ModelState


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def test_floating_tensors_are_read_in_the_models_order_and_counters_are_not() -> None:
    network = model()
    state = ModelState(network).read()
    floating = [n for n, t in network.state_dict().items() if t.is_floating_point()]
    assert list(state) == floating
    assert "1.running_mean" in state
    assert "1.num_batches_tracked" not in state
    assert all(state[n].shape == tuple(t.shape) for n, t in network.named_parameters())


def test_what_was_loaded_is_read_and_used() -> None:
    source, target = model(), model()
    with torch.no_grad():
        for parameter in source.parameters():
            parameter.add_(1.0)
    before = ModelState(target)
    counter = int(target[1].num_batches_tracked)  # type: ignore[index]
    before.load(ModelState(source).read())
    x = torch.randn(5, 3)
    assert torch.equal(source.eval()(x), target.eval()(x))
    assert int(target[1].num_batches_tracked) == counter  # type: ignore[index]


def test_reading_shares_memory_and_loading_copies() -> None:
    network = nn.Linear(2, 2)
    state = ModelState(network)
    seen = state.read()["weight"]
    given = {name: np.full_like(value, 2.0) for name, value in state.read().items()}
    state.load(given)
    assert (seen == 2.0).all(), "no copy was read"
    given["weight"][:] = 9.0
    assert (network.weight == 2.0).all(), "what was given is not held on to"


def test_other_weights_are_not_taken_in_silence() -> None:
    state = ModelState(nn.Linear(2, 2))
    with pytest.raises(KeyError, match="weight"):
        state.load({"bias": np.zeros(2, np.float32)})
    with pytest.raises(ValueError, match="broadcast"):
        state.load({"weight": np.zeros((3, 2), np.float32), "bias": np.zeros(2, np.float32)})
