"""Canaries: records whose presence an attacker tries to guess from what a run releases.

A Dirac canary touches one weight of its own with a gradient far above the clipping norm, so that
nothing hides it but clipping and noise. A black-box canary is a record of the data set with a
random label, which only its loss gives away.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dp_fedmed.config import DataConfig
from dp_fedmed.data import DataSet, Records
from dp_fedmed.errors import ConfigError

LOADER = f"{__name__}.load"
MODEL = f"{__name__}.DiracCanaries"
WEIGHT = "coordinates.weight"
BLANK = -1.0

_SATURATED = 1e12  # a logit so wrong that the loss has slope 1 wherever the weights are

_prepared: dict[str, DataSet] = {}
_names = itertools.count()


class DiracCanaries(nn.Module):
    """A network in which record i moves weight i alone, each step by the same gradient.

    A record is a canary's number, or `BLANK`, which moves nothing.

    >>> model = DiracCanaries(count=3, gradient=10.0)
    >>> model(torch.tensor([[1.0], [BLANK]]))[:, 1].sum().backward()
    >>> model.coordinates.weight.grad.flatten().tolist()
    [0.0, 10.0, 0.0]
    """

    def __init__(self, count: int, gradient: float) -> None:
        super().__init__()
        self.coordinates = nn.Embedding(count, 1)
        nn.init.zeros_(self.coordinates.weight)
        self.gradient = gradient

    def forward(self, x: Tensor) -> Tensor:
        """Two logits; the true class 1 is so far off that its loss falls by 1 with each unit."""
        number = x[:, 0].long()
        weight = self.coordinates(number.clamp(min=0))[:, 0]
        moved = weight * (number >= 0).to(weight.dtype) * self.gradient - _SATURATED
        return torch.stack([torch.zeros_like(moved), moved], dim=1)


def dirac_data(numbers: NDArray[np.float32]) -> DataSet:
    """Canaries as a data set: one record for each number, all of class 1."""

    def records(x: NDArray[np.float32]) -> Records:
        return Records(x.reshape(-1, 1).astype(np.float32), np.ones(len(x), np.int64))

    blank = records(np.full(8, BLANK, np.float32))
    return DataSet(records(numbers), blank, blank, 2, ("absent", "present"))


@contextmanager
def prepared(data: DataSet) -> Iterator[DataConfig]:
    """While this lasts, this configuration loads these data, here and in processes forked here."""
    name = f"canaries-{next(_names)}"
    _prepared[name] = data
    try:
        yield DataConfig(name=LOADER, path=name, client_val_fraction=0.0)
    finally:
        del _prepared[name]


def load(config: DataConfig, seed: int) -> DataSet:
    """What `prepared` holds under `data.path`."""
    if config.path not in _prepared:
        raise ConfigError(
            f"data.name={LOADER} is for dp-fedmed audit, which prepares its canaries: choose a "
            "data set, for example data.name=digits"
        )
    return _prepared[config.path]
