"""A client's local training without record-level privacy: plain mini-batch steps.

Batches and dropout come from the client's own reproducible stream, so that the result depends on
the seed, the round and the client's name, and on nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from dp_fedmed.data.records import Records
from dp_fedmed.errors import ConfigError
from dp_fedmed.learning.networks.task import Task, to_input, to_tensors

CONVERTED_AT_ONCE = 2**24  # input values; larger sets stay bytes and are converted by batch


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """How a client trains in one round.

    Attributes:
        optimizer: `sgd`, `adam` or `adamw`.
        lr: learning rate.
        momentum: of `sgd`.
        weight_decay: of all of them.
        batch_size: records per step; with DP-SGD the expected number.
        local_epochs: passes over the records.
        local_steps: number of steps instead, if given.
    """

    optimizer: str = "sgd"
    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    batch_size: int = 32
    local_epochs: int = 1
    local_steps: int | None = None


@dataclass(frozen=True)
class LocalResult:
    """What one client's local training did."""

    loss: float
    steps: int


def train_locally(
    model: nn.Module,
    records: Records,
    *,
    task: Task,
    config: LocalTraining,
    rng: np.random.Generator,
    device: torch.device,
) -> LocalResult:
    """Train the model in place on one client's records.

    Returns:
        The mean training loss over the steps, and their number; no records, no step.
    """
    if len(records) == 0:
        return LocalResult(loss=0.0, steps=0)
    seed_dropout(int(rng.integers(2**63)), device)
    optimizer = make_optimizer(model, config)
    inputs, targets = to_tensors(records, device)
    if inputs.numel() <= CONVERTED_AT_ONCE:
        inputs = to_input(inputs)
    losses: list[torch.Tensor] = []
    model.train()
    for batch in batches(len(records), config, rng):
        optimizer.zero_grad()
        loss = task.loss(model(to_input(inputs[batch])), targets[batch])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.detach())
    return LocalResult(loss=float(torch.stack(losses).double().mean()), steps=len(losses))


def seed_dropout(seed: int, device: torch.device) -> None:
    """Seed the generator that dropout draws from, on this device only.

    `torch.manual_seed` would note a stack trace for every absent accelerator, each time.
    """
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def make_optimizer(model: nn.Module, config: LocalTraining) -> torch.optim.Optimizer:
    """The local optimizer, new for every round: a client keeps no optimizer state."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    decay = config.weight_decay
    if config.optimizer == "sgd":
        momentum = config.momentum
        return torch.optim.SGD(parameters, lr=config.lr, momentum=momentum, weight_decay=decay)
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    return kind(parameters, lr=config.lr, weight_decay=decay)


def batches(n: int, config: LocalTraining, rng: np.random.Generator) -> Iterator[torch.Tensor]:
    """Index batches of shuffled passes over n records: `local_steps` of them, or whole epochs."""
    size = min(config.batch_size, n)
    per_epoch = -(-n // size)
    steps = config.local_steps or config.local_epochs * per_epoch
    order = torch.empty(0, dtype=torch.int64)
    for step in range(steps):
        start = (step % per_epoch) * size
        if start == 0:
            order = torch.from_numpy(rng.permutation(n))
        yield order[start : start + size]


def pick_device(name: str) -> torch.device:
    """`auto` is CUDA where there is one, then Apple's MPS, else the CPU.

    >>> pick_device("cpu")
    device(type='cpu')
    """
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return torch.device(next((kind for kind, is_there in available.items() if is_there), "cpu"))
    device = torch.device(name)
    if not available.get(device.type, True):
        raise ConfigError(
            f"training.device={name} is not available on this machine: use "
            "training.device=auto or training.device=cpu"
        )
    return device
