"""Records rebuilt from one site's update, and how close they come to the originals.

Geiping et al. 2020, "Inverting Gradients": images whose gradient points the same way, by cosine
similarity plus total variation. After one step of SGD an update is a gradient, and the number of
records travels with it; labels are read off the last layer's bias.
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

BEST_PSNR = 100.0  # of an image that is the same to the last bits
_C1, _C2 = 0.01**2, 0.03**2

Update = Mapping[str, NDArray[Any]]
Images = NDArray[np.float64]


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
    advance: Callable[[int], None],
) -> Images:
    """Images in [0, 1] of this shape whose gradient is closest to the update's direction.

    The model has the weights that the site was sent; `smoothing` is the weight of total variation.
    """
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    parameters = list(trained.values())
    wanted = [-torch.tensor(update[name]).to(p) for name, p in trained.items()]
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
        advance(1)
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


def psnr(found: Images, original: Images) -> float:
    """Peak signal-to-noise ratio of an image in [0, 1], in decibels; at most 100.

    >>> round(psnr(np.full((1, 4, 4), 0.6), np.full((1, 4, 4), 0.5)), 1)
    20.0
    """
    error = float(((found - original) ** 2).mean())
    return float(min(BEST_PSNR, -10.0 * np.log10(max(error, 1e-30))))


def ssim(found: Images, original: Images) -> float:
    """Structural similarity with a Gaussian window (Wang et al. 2004), mean over channels.

    >>> image = np.random.default_rng(0).random((1, 16, 16))
    >>> round(ssim(image, image), 6)
    1.0
    """
    from scipy.ndimage import gaussian_filter

    def local(image: Any) -> Any:
        return gaussian_filter(image, sigma=(0.0, 1.5, 1.5), truncate=3.5)

    a, b = local(found), local(original)
    spread_a, spread_b = local(found**2) - a * a, local(original**2) - b * b
    shared = local(found * original) - a * b
    top = (2 * a * b + _C1) * (2 * shared + _C2)
    return float((top / ((a * a + b * b + _C1) * (spread_a + spread_b + _C2))).mean())


def paired(found: Images, originals: Images) -> Images:
    """The found images in the order of the originals that they are closest to, all together.

    A sum over records keeps no order, so any order is as good; this one favours the attacker.

    >>> paired(np.array([[[[1.0]]], [[[0.0]]]]), np.array([[[[0.1]]], [[[0.9]]]])).ravel().tolist()
    [0.0, 1.0]
    """
    from scipy.optimize import linear_sum_assignment

    n, m = len(found), len(originals)
    errors = ((found.reshape(n, 1, -1) - originals.reshape(1, m, -1)) ** 2).mean(axis=2)
    rows, columns = linear_sum_assignment(errors)
    ordered = np.empty_like(originals)
    ordered[columns] = found[rows]
    return ordered
