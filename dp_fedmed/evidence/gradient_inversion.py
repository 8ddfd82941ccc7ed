"""Records rebuilt from one site's update, by images whose gradient points the same way.

Geiping et al. 2020, "Inverting Gradients": cosine similarity plus total variation. After one step
of SGD an update is a gradient, and the number of records travels with it; labels are read off the
last layer's bias.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dp_fedmed.learning.networks.task import Task
from dp_fedmed.privacy.streams.reproducible import stream

LEARNING_RATE = 0.1

Update = Mapping[str, NDArray[Any]]


def invert_update(
    model: nn.Module,
    task: Task,
    update: Update,
    *,
    shape: tuple[int, ...],
    labels: NDArray[np.int64],
    smoothing: float,
    seed: int,
    steps: int,
    advance: Callable[[], None] = lambda: None,
) -> NDArray[np.float64]:
    """Images in [0, 1] of which the update says the most.

    Args:
        model: with the weights that the site was sent.
        task: its loss.
        update: the change that the site answered with; only its direction is used.
        shape: (records, channels, height, width).
        labels: a class for each record.
        smoothing: weight of total variation.
        seed: of the images to begin with.
        steps: of Adam.
        advance: called after every step.
    """
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    parameters = [p for p in model.parameters() if p.requires_grad]
    wanted = [-torch.tensor(update[name]).to(p) for name, p in zip(names, parameters, strict=True)]
    norm = torch.stack([(w * w).sum() for w in wanted]).sum().sqrt().clamp(min=1e-12)
    begin = stream(seed, "inversion").normal(0.0, 0.3, shape).astype(np.float32)
    guess = torch.from_numpy(begin).requires_grad_(True)
    targets = torch.from_numpy(labels)
    optimizer = torch.optim.Adam([guess], lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        loss = task.loss(model(guess), targets)
        gradients = torch.autograd.grad(loss, parameters, create_graph=True)
        along = torch.stack([(g * w).sum() for g, w in zip(gradients, wanted, strict=True)]).sum()
        length = (torch.stack([(g * g).sum() for g in gradients]).sum() + 1e-24).sqrt()
        apart = 1.0 - along / (norm * length) + smoothing * total_variation(guess)
        (guess.grad,) = torch.autograd.grad(apart, [guess])
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            guess.clamp_(-1.0, 1.0)
        advance()
    return (guess.detach().double().numpy() + 1.0) / 2.0


def total_variation(images: Tensor) -> Tensor:
    """Mean difference between neighbouring pixels."""
    down = (images[..., 1:, :] - images[..., :-1, :]).abs().mean()
    return down + (images[..., 1:] - images[..., :-1]).abs().mean()


def inferred_labels(
    model: nn.Module,
    update: Update,
    *,
    records: int,
    num_classes: int,
    input_shape: tuple[int, ...],
    lr: float,
) -> NDArray[np.int64] | None:
    """How many records of each class there are, from the last bias; None if there is no bias.

    Its gradient is the mean over records of (predicted share − 1 for the true class); what a new
    model predicts hardly depends on the record.
    """
    biases = [n for n, p in model.named_parameters() if p.shape == (num_classes,) and "bias" in n]
    if not biases:
        return None
    gradient = -np.asarray(update[biases[-1]], dtype=np.float64) / lr
    model.eval()
    with torch.no_grad():
        predicted = model(torch.zeros(1, *input_shape)).softmax(dim=1)[0].double().numpy()
    counts = np.clip(records * (predicted - gradient), 0.0, None)
    counts *= records / max(float(counts.sum()), 1e-12)
    whole = np.floor(counts).astype(np.int64)
    rest = np.argsort(whole - counts)[: records - int(whole.sum())]
    whole[rest] += 1
    return np.repeat(np.arange(num_classes), whole)
