"""Per-sample gradients: our step against Opacus' own ways and against plain SGD, in one run."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import torch
from opacus import GradSampleModule
from opacus.grad_sample import GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from torch import Tensor, nn

from bench.rows import Row, best_of
from dp_fedmed.learning.networks.dp_sgd import KeyedDPOptimizer
from dp_fedmed.learning.networks.per_sample import PerSampleGradients
from dp_fedmed.learning.networks.task import Task, make_task
from dp_fedmed.models import SmallCNN, UNet
from dp_fedmed.privacy.mechanisms.dp_sgd import DPSGD
from dp_fedmed.privacy.streams.noise import NoiseStream

REPEATS = 8
Step = Callable[[], None]


def plain(model: nn.Module, task: Task, x: Tensor, y: Tensor) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        task.loss(model(x), y).backward()
        optimizer.step()

    return step


def opacus_step(model: nn.Module, task: Task, x: Tensor, y: Tensor, functorch: bool) -> Step:
    wrapped = GradSampleModule(model, force_functorch=functorch)
    optimizer = DPOptimizer(
        torch.optim.SGD(wrapped.parameters(), lr=0.01),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=len(x),
    )

    def step() -> None:
        optimizer.zero_grad()
        task.loss(wrapped(x), y).backward()
        optimizer.step()

    return step


def opacus_ghost(model: nn.Module, task: Task, x: Tensor, y: Tensor) -> Step:
    wrapped = GradSampleModuleFastGradientClipping(model, max_grad_norm=1.0)
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.SGD(wrapped.parameters(), lr=0.01),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=len(x),
    )

    def step() -> None:
        losses = task.record_losses(wrapped(x), y)
        losses.mean().backward(retain_graph=True)
        optimizer.zero_grad()
        factors = wrapped.get_clipping_coef()
        wrapped.disable_hooks()
        (factors * losses).sum().backward()
        wrapped.enable_hooks()
        optimizer.step()

    return step


def ours(model: nn.Module, task: Task, x: Tensor, y: Tensor, mode: str) -> Step:
    gradients = PerSampleGradients(model, task, mode)
    optimizer = KeyedDPOptimizer(
        torch.optim.SGD(gradients.parameters, lr=0.01),
        DPSGD(
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            sample_rate=1.0,
            steps=1,
            grad_mode=mode,
            physical_batch_size=len(x),
        ),
        expected_batch_size=len(x),
    )

    def step() -> None:
        optimizer.start_sum()
        gradients.add(optimizer, x, y)
        optimizer.noisy_step(0, lambda number, exact: NoiseStream.fresh())

    return step


def compare(name: str, model: nn.Module, task: Task, x: Tensor, y: Tensor) -> list[Row]:
    model.train()
    steps: dict[str, Step] = {"plain": plain(copy.deepcopy(model), task, x, y)}
    steps["opacus hooks"] = opacus_step(copy.deepcopy(model), task, x, y, False)
    steps["opacus functorch"] = opacus_step(copy.deepcopy(model), task, x, y, True)
    steps["opacus ghost"] = opacus_ghost(copy.deepcopy(model), task, x, y)
    for mode in ("hooks", "functorch"):
        steps[f"ours {mode}"] = ours(copy.deepcopy(model), task, x, y, mode)
    seconds = dict.fromkeys(steps, float("inf"))
    for _ in range(REPEATS):
        for key, step in steps.items():
            seconds[key] = min(seconds[key], best_of(1, step))
    best = {
        who: min((t, key) for key, t in seconds.items() if key.startswith(who))
        for who in ("opacus", "ours")
    }
    return [
        Row(f"{name}: {best['opacus'][1]} / plain SGD", seconds["plain"] / best["opacus"][0]),
        Row(f"{name}: {best['ours'][1]} / plain SGD", seconds["plain"] / best["ours"][0]),
        Row(
            f"{name}: ours / best of Opacus",
            best["opacus"][0] / best["ours"][0],
            0.95,
            at_least=True,
        ),
    ]


def rows() -> list[Row]:
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    classify = make_task("classification", "cross_entropy")
    segment = make_task("segmentation", "dice_ce")
    result = []
    for batch in (32, 256):
        x = torch.from_numpy(rng.normal(size=(batch, 1, 28, 28)).astype(np.float32))
        y = torch.from_numpy(rng.integers(0, 10, batch))
        cnn = SmallCNN((1, 28, 28), 10, channels=[8, 16], hidden=32)
        result += compare(f"CNN, batch {batch}", cnn, classify, x, y)
    x = torch.from_numpy(rng.normal(size=(16, 1, 64, 64)).astype(np.float32))
    y = torch.from_numpy(rng.integers(0, 2, (16, 64, 64)))
    return [*result, *compare("U-Net, batch 16", UNet((1, 64, 64), 2), segment, x, y)]
