"""DP-SGD at one client: Poisson batches, per-sample clipping, keyed noise (Abadi et al. 2016).

The guarantee kept here: every step's released gradient is the sum of contributions of norm at most
C, one per record of a Poisson batch, plus N(0, σ²C²) from the client's secret stream; also for
empty batches, and for records whose gradient is not finite, which contribute zero.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from opacus.grad_sample import GradSampleHooks, GradSampleHooksFastGradientClipping
from opacus.optimizers import DPOptimizer
from torch import Tensor, nn

from dp_fedmed.config import GradMode, TrainingConfig
from dp_fedmed.data.records import Records
from dp_fedmed.privacy.events import Adjacency
from dp_fedmed.privacy.noise import NoiseStream
from dp_fedmed.tasks.base import Task, to_input, to_tensors
from dp_fedmed.tasks.local_training import LocalResult, make_optimizer

logger = logging.getLogger(__name__)

# Inputs need no gradient, which Opacus' hooks allow for; torch warns of it all the same.
warnings.filterwarnings("ignore", message="Full backward hook is firing")

Sum = list[np.ndarray[Any, Any]]
BatchStream = Callable[[int], np.random.Generator]
NoiseFor = Callable[[int, Sum], NoiseStream]


@dataclass(frozen=True, kw_only=True)
class DPSGDPlan:
    """What one client does in one round."""

    noise_multiplier: float
    max_grad_norm: float
    sample_rate: float
    steps: int
    grad_mode: GradMode
    physical_batch_size: int
    adjacency: Adjacency = "add_remove"

    @property
    def in_force(self) -> dict[str, float | str]:
        """What the round's secret streams depend on."""
        return {
            "noise_multiplier": self.noise_multiplier,
            "max_grad_norm": self.max_grad_norm,
            "sample_rate": self.sample_rate,
            "steps": self.steps,
            "grad_mode": str(self.grad_mode),
        }


class KeyedDPOptimizer(DPOptimizer):  # type: ignore[misc]
    """Opacus' optimizer with our noise: from a keyed ChaCha20 stream, never a torch generator.

    Opacus lets one NaN record poison the sum and divides by a realised count; here a record whose
    gradient is not finite contributes zero, and the denominator is the constant q·n.
    """

    def start_sum(self) -> None:
        """Begin a logical batch: an empty one sums to zero."""
        for p in self.params:
            p.grad_sample = None
            p.summed_grad = torch.zeros_like(p)

    def add_clipped(self, per_sample: Sequence[Tensor]) -> None:
        """Add per-sample gradients, one tensor a parameter, each record clipped to C."""
        rows = [g.reshape(len(g), -1) for g in per_sample]
        norms = torch.stack([torch.linalg.vector_norm(r, dim=1) for r in rows]).norm(dim=0)
        finite = torch.isfinite(norms)
        factors = (self.max_grad_norm / (norms + 1e-6)).clamp(max=1.0)
        if not bool(finite.all()):
            factors = torch.where(finite, factors, 0.0)
            rows = [torch.where(finite[:, None], r, 0.0) for r in rows]
        for p, r in zip(self.params, rows, strict=True):
            p.summed_grad += (factors @ r).view_as(p)

    def noisy_step(self, step: int, noise_for: NoiseFor) -> None:
        """Add noise to the finished sum, divide by the expected batch size, and step."""
        sums = [p.summed_grad.cpu().numpy() for p in self.params]
        stream = noise_for(step, sums)
        sigma = self.noise_multiplier * self.max_grad_norm
        noise = stream.normal(sum(s.size for s in sums), std=sigma, dtype=np.float32)
        start = 0
        for p, total in zip(self.params, sums, strict=True):
            part = torch.from_numpy(noise[start : start + total.size]).view_as(p).to(p.device)
            p.grad = (p.summed_grad + part).div_(self.expected_batch_size)
            start += total.size
        self.original_optimizer.step()


class PerSampleGradients:
    """Sums of clipped per-sample gradients of one model, by one of Opacus' ways.

    Made once for a model and kept: hooks stay attached, and are silent outside training.
    """

    def __init__(self, model: nn.Module, task: Task, mode: GradMode, max_grad_norm: float) -> None:
        self.model, self.task, self.mode = model, task, mode
        model.train()
        if mode is GradMode.ghost:
            self.hooks = GradSampleHooksFastGradientClipping(
                model, loss_reduction="sum", max_grad_norm=max_grad_norm
            )
        else:
            self.hooks = GradSampleHooks(
                model, loss_reduction="sum", force_functorch=mode is GradMode.functorch
            )
        # Opacus hangs grad_sample and summed_grad on parameters, which their type does not know.
        self.parameters: list[Any] = [p for p in model.parameters() if p.requires_grad]

    def close(self) -> None:
        """Take the hooks off."""
        self.hooks.remove_hooks()

    def add(self, optimizer: KeyedDPOptimizer, x: Tensor, y: Tensor) -> Tensor:
        """Add the clipped gradients of these records to the optimizer's sum; returns the losses."""
        if self.mode is GradMode.ghost:
            return self._add_by_norms(optimizer, x, y)
        losses = self.task.record_losses(self.model(x), y)
        self._clear()
        losses.sum().backward()  # type: ignore[no-untyped-call]
        optimizer.add_clipped([p.grad_sample for p in self.parameters])
        self._clear()
        return losses.detach()

    def _add_by_norms(self, optimizer: KeyedDPOptimizer, x: Tensor, y: Tensor) -> Tensor:
        """Ghost clipping (Li et al. 2022): norms first, then one backward of the weighted loss."""
        losses = self.task.record_losses(self.model(x), y)
        self._clear()
        losses.sum().backward(retain_graph=True)  # type: ignore[no-untyped-call]
        norms = self.hooks.get_norm_sample()
        finite = torch.isfinite(norms)
        self._clear()
        if not bool(finite.all()):  # zero times NaN is NaN: such records must not be in the graph
            if bool(finite.any()):
                self._add_by_norms(optimizer, x[finite], y[finite])
            return losses.detach()
        factors = (optimizer.max_grad_norm / (norms + 1e-6)).clamp(max=1.0)
        self.hooks.disable_hooks()
        (factors * losses).sum().backward()
        self.hooks.enable_hooks()
        for p in self.parameters:
            p.summed_grad += p.grad
        self._clear()
        return losses.detach()

    def _clear(self) -> None:
        for p in self.parameters:
            p.grad = None
            p.grad_sample = None


def train_privately(
    gradients: PerSampleGradients,
    records: Records,
    *,
    config: TrainingConfig,
    plan: DPSGDPlan,
    batch_stream: BatchStream,
    noise_for: NoiseFor,
    device: torch.device,
) -> LocalResult:
    """Run one client's DP-SGD steps on the model in place.

    Args:
        gradients: the model with its per-sample gradients.
        records: the client's records.
        config: optimizer and learning rate.
        plan: σ, C, q and the number of steps.
        batch_stream: the secret generator that draws the batch of a step.
        noise_for: the secret stream that noises a step, given the exact sum.
        device: where to compute.
    """
    model = gradients.model
    optimizer = KeyedDPOptimizer(
        make_optimizer(model, config),
        noise_multiplier=plan.noise_multiplier,
        max_grad_norm=plan.max_grad_norm,
        expected_batch_size=plan.sample_rate * len(records),
    )
    inputs, targets = to_tensors(records, device)
    losses: list[Tensor] = []
    model.train()
    for step in range(plan.steps):
        optimizer.start_sum()
        for part in poisson_batch(len(records), plan, batch_stream(step)):
            x, y = to_input(inputs[part]), targets[part]
            losses.append(gradients.add(optimizer, x, y))
        optimizer.noisy_step(step, noise_for)
    mean = float(torch.nanmean(torch.cat(losses).double())) if losses else 0.0
    return LocalResult(loss=mean if np.isfinite(mean) else 0.0, steps=plan.steps)


def poisson_batch(n: int, plan: DPSGDPlan, rng: np.random.Generator) -> Iterator[Tensor]:
    """Each of n records with probability q, in pieces of at most the physical batch size."""
    if plan.sample_rate >= 1.0:
        chosen = torch.arange(n)
    else:
        chosen = torch.from_numpy(np.flatnonzero(rng.random(n) < plan.sample_rate))
    for start in range(0, len(chosen), plan.physical_batch_size):
        yield chosen[start : start + plan.physical_batch_size]


def coupling(model: nn.Module, task: Task, records: Records, device: torch.device) -> float:
    """How much records influence each other's loss: 0 for a model and loss that keep them apart.

    The largest relative difference between a record's loss in a batch and alone, in training mode
    but without dropout.
    """
    inputs, targets = to_tensors(records.subset(np.arange(min(8, len(records)))), device)
    model.train()
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.eval()
    with torch.no_grad():
        together = task.record_losses(model(to_input(inputs)), targets)
        alone = torch.cat(
            [
                task.record_losses(model(to_input(inputs[i : i + 1])), targets[i : i + 1])
                for i in range(len(inputs))
            ]
        )
    model.train()
    return float(((together - alone).abs() / (alone.abs() + 1e-3)).max())


def fastest_mode(
    model: nn.Module, task: Task, records: Records, batch_size: int, device: torch.device
) -> GradMode:
    """Measure Opacus' ways to per-sample gradients on this model and batch size.

    The model's weights are left as they were.
    """
    size = min(batch_size, 64)
    inputs, targets = to_tensors(records.subset(np.resize(np.arange(len(records)), size)), device)
    x = to_input(inputs)
    seconds: dict[GradMode, float] = {}
    for mode in (GradMode.hooks, GradMode.functorch, GradMode.ghost):
        try:
            seconds[mode] = _time_mode(model, task, mode, x, targets)
        except (NotImplementedError, RuntimeError, ValueError, AttributeError) as error:
            logger.info("per-sample gradients by %s are not possible here: %s", mode, error)
    if not seconds:
        raise ValueError("none of Opacus' ways to per-sample gradients works for this model")
    best = min(seconds, key=lambda mode: seconds[mode])
    ratios = ", ".join(f"{m} {seconds[best] / t:.2f}" for m, t in seconds.items())
    logger.info("per-sample gradients by %s (relative speed: %s)", best, ratios)
    return best


def _time_mode(model: nn.Module, task: Task, mode: GradMode, x: Tensor, y: Tensor) -> float:
    gradients = PerSampleGradients(model, task, mode, 1.0)
    optimizer = KeyedDPOptimizer(
        torch.optim.SGD(gradients.parameters, lr=0.0),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=len(x),
    )
    try:
        times = []
        for _ in range(4):
            started = time.perf_counter()
            optimizer.start_sum()
            gradients.add(optimizer, x, y)
            times.append(time.perf_counter() - started)
        return min(times)
    finally:
        gradients.close()
        optimizer.zero_grad(set_to_none=True)
