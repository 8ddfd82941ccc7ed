"""Builds that are broken on purpose: networks that break DP-SGD below its checks, and patches.

Each has one of the errors that an audit must find. The networks take what `model._target_` gets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor, nn
from torch.nn import functional as F

from dp_fedmed.learning import LocalRound
from dp_fedmed.learning.networks.learner import NetworkLearner, NetworkWork
from dp_fedmed.learning.networks.per_sample import PerSampleGradients
from dp_fedmed.privacy.mechanisms.dp_sgd import DPSGD
from dp_fedmed.privacy.streams.noise import NoiseStream
from dp_fedmed.privacy.streams.rounds import RoundStreams

Patch = pytest.MonkeyPatch


class Patches(nn.Module):
    """Folds a record's features into rows of the batch: rows are clipped then, not records."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(1, 8), nn.Linear(8, num_classes)
        self.count = input_shape[0]

    def forward(self, x: Tensor) -> Tensor:
        rows = self.embed(x.reshape(-1, 1)).relu()
        return self.head(rows).reshape(len(x), self.count, -1).mean(dim=1)


class Centred(nn.Module):
    """Features without their mean over the batch, under a head that starts at zero."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(input_shape[0], 16), nn.Linear(16, num_classes)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        found = self.body(x)
        return self.head(found - found.mean(dim=0, keepdim=True))


class Masked(nn.Module):
    """A dropout mask for each place in the batch: one record more shifts everybody's."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(input_shape[0], 16), nn.Linear(16, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.dropout(self.body(x).relu(), 0.1, self.training))


def without_checks(patch: Patch) -> None:
    """DP-SGD as it would be if nobody had looked at the network."""

    def settle(self: NetworkLearner, grad_mode: str) -> str:
        return "hooks" if grad_mode == "auto" else grad_mode

    patch.setattr(NetworkLearner, "settle", settle)
    patch.setattr(NetworkWork, "vet", lambda *_: None)
    patch.setattr(PerSampleGradients, "_require_rows", lambda *_: None)


class _Weaker:
    """A noise stream whose draws are changed before they are used."""

    def __init__(self, stream: NoiseStream, change: Callable[[Any], Any]) -> None:
        self.stream, self.change = stream, change

    def normal(self, *shape: Any, **settings: Any) -> Any:
        return self.change(self.stream.normal(*shape, **settings))


def weaker_noise(patch: Patch, change: Callable[[Any], Any]) -> None:
    noise = RoundStreams.noise
    patch.setattr(RoundStreams, "noise", lambda *given: _Weaker(noise(*given), change))


def unclipped(patch: Patch) -> None:
    """A clipping norm that is 50 times too large, with the noise of the right one."""
    train = NetworkWork.train

    def broken(self: NetworkWork, work: LocalRound) -> Any:
        made = work.mechanism
        assert isinstance(made, DPSGD)
        sigma = made.noise_multiplier / 50
        wider = replace(made, max_grad_norm=50 * made.max_grad_norm, noise_multiplier=sigma)
        return train(self, replace(work, mechanism=wider))

    patch.setattr(NetworkWork, "train", broken)
