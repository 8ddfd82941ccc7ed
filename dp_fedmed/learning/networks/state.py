"""The weights of one network as named arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

State = dict[str, np.ndarray[Any, Any]]


class ModelState:
    """The floating-point tensors of one model, found once; integer buffers are never sent.

    >>> state = ModelState(nn.Linear(2, 1))
    >>> sorted(state.read())
    ['bias', 'weight']
    """

    def __init__(self, model: nn.Module) -> None:
        self._tensors = {
            name: tensor.detach()
            for name, tensor in model.state_dict().items()
            if tensor.is_floating_point()
        }

    def read(self) -> State:
        """The tensors as numpy arrays, in the model's order; on the CPU they share its memory."""
        return {name: tensor.numpy(force=True) for name, tensor in self._tensors.items()}

    def load(self, state: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Copy arrays into the model."""
        for name, tensor in self._tensors.items():
            if tensor.device.type == "cpu":
                np.copyto(tensor.numpy(), state[name])
            else:
                tensor.copy_(torch.from_numpy(state[name].copy()))
