"""DP-SGD at one client: Poisson batches, per-record clipping, keyed noise (Abadi et al. 2016).

The guarantee kept here: every step's released gradient is the sum of contributions of norm at most
C, one per record of a Poisson batch, plus N(0, σ²Δ²), added in integers from the client's secret
stream; Δ is C and what rounding can add to it. Also for empty batches, and for records whose
gradient is not finite, which contribute zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from opacus.optimizers import DPOptimizer
from torch import Tensor

from dp_fedmed.config import GradMode, TrainingConfig
from dp_fedmed.data.records import Records
from dp_fedmed.learning.networks.local_training import LocalResult, make_optimizer, seed_dropout
from dp_fedmed.learning.networks.per_sample import PerSampleGradients, clip_factors
from dp_fedmed.learning.networks.task import to_input, to_tensors
from dp_fedmed.privacy.accounting.events import Adjacency
from dp_fedmed.privacy.mechanisms.grid import Grid
from dp_fedmed.privacy.streams.noise import NoiseStream

Sum = list[np.ndarray[Any, Any]]
BatchStream = Callable[[int], np.random.Generator]
NoiseFor = Callable[[int, Sum], NoiseStream]
#: Values of per-record gradients that are in memory at once; larger networks take fewer records.
MOST_VALUES = 2**27


@dataclass(frozen=True, kw_only=True)
class DPSGDPlan:
    """What one client does in one round."""

    noise_multiplier: float
    max_grad_norm: float
    sample_rate: float
    steps: int
    grad_mode: GradMode
    physical_batch_size: int
    adjacency: Adjacency = "zero_out"

    @property
    def grid(self) -> Grid:
        """The public grid of the sums."""
        return Grid.for_norm(self.max_grad_norm, noise_multiplier=self.noise_multiplier)

    @property
    def in_force(self) -> dict[str, float | str]:
        """What the round's secret streams depend on."""
        return {
            "noise_multiplier": self.noise_multiplier,
            "max_grad_norm": self.max_grad_norm,
            "sample_rate": self.sample_rate,
            "steps": self.steps,
            "grad_mode": str(self.grad_mode),
            "grid": self.grid.step,
        }

    def records_per_block(self, weights: int) -> int:
        """How many of a client's records, counted by their numbers, are computed together.

        Blocks are fixed by number, not by who was drawn: a record changes the rounding of its own
        block's rows and of no other's.
        """
        together = min(self.physical_batch_size, max(1, MOST_VALUES // max(1, weights)))
        if self.sample_rate >= 1.0:
            return together
        return max(1, int(0.75 * together / self.sample_rate))  # rarely more are drawn than fit


class KeyedDPOptimizer(DPOptimizer):  # type: ignore[misc]
    """Opacus' optimizer with our sum and noise: float64 and integers, keyed ChaCha20.

    Opacus adds float32 noise to a float32 sum, whose low bits give records away, lets one NaN
    record poison the sum, and divides by a realised count; here the denominator is the constant
    q·n.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, *, sensitivity: float | None = None, **settings: Any
    ) -> None:
        super().__init__(optimizer, **settings)
        self.sensitivity: float = self.max_grad_norm if sensitivity is None else sensitivity
        self.totals: list[Tensor] = []

    def start_sum(self) -> None:
        """Begin a logical batch: an empty one sums to zero."""
        self.totals = [torch.zeros(p.shape, dtype=torch.float64) for p in self.params]

    def add_clipped(self, per_sample: Sequence[Tensor]) -> None:
        """Add per-sample gradients, one tensor per parameter, each record clipped to C."""
        rows = [g.reshape(len(g), -1).cpu() for g in per_sample]
        norms = torch.stack([_norms(r) for r in rows]).norm(dim=0)
        factors = clip_factors(norms, self.max_grad_norm)
        if not bool(torch.isfinite(norms).all()):
            rows = [torch.where(torch.isfinite(norms)[:, None], r, 0.0) for r in rows]
        for total, r in zip(self.totals, rows, strict=True):
            flat = total.view(-1)
            for part in _in_parts(r):
                flat += factors[part] @ r[part].double()

    def noisy_step(self, step: int, noise_for: NoiseFor) -> None:
        """Put the finished sum on the grid, add noise, divide by the expected batch, and step."""
        grid = Grid.for_norm(self.max_grad_norm, noise_multiplier=self.noise_multiplier)
        exact = [grid.truncated(total.numpy()) for total in self.totals]
        std = self.noise_multiplier * self.sensitivity
        noise = grid.noise(noise_for(step, exact), sum(e.size for e in exact), std=std)
        start = 0
        for p, total in zip(self.params, exact, strict=True):
            part = noise[start : start + total.size].reshape(total.shape)
            released = grid.values(total + part) / self.expected_batch_size
            p.grad = torch.from_numpy(released).to(p.device, p.dtype)
            start += total.size
        self.original_optimizer.step()


def _in_parts(rows: Tensor) -> Iterator[slice]:
    """So few rows at a time that their float64 copies stay in the cache: ten times as fast."""
    size = max(1, 2**18 // max(1, rows.shape[1]))
    for start in range(0, len(rows), size):
        yield slice(start, start + size)


def _norms(rows: Tensor) -> Tensor:
    """The length of each row, in float64."""
    parts = [torch.linalg.vector_norm(rows[part].double(), dim=1) for part in _in_parts(rows)]
    return torch.cat(parts) if parts else rows.new_zeros(0, dtype=torch.float64)


def private_optimizer(
    optimizer: torch.optim.Optimizer, plan: DPSGDPlan, *, records: int
) -> KeyedDPOptimizer:
    """The optimizer of one client's round, with the sensitivity that its noise is scaled to.

    Raises:
        ValueError: if the sums do not fit onto the grid.
    """
    plan.grid.require_room(
        max_norm=plan.max_grad_norm,
        noise_multiplier=plan.noise_multiplier,
        contributions=records,
    )
    weights = sum(p.numel() for group in optimizer.param_groups for p in group["params"])
    return KeyedDPOptimizer(
        optimizer,
        noise_multiplier=plan.noise_multiplier,
        max_grad_norm=plan.max_grad_norm,
        expected_batch_size=plan.sample_rate * records,
        sensitivity=plan.grid.sensitivity(
            max_norm=plan.max_grad_norm,
            dimension=weights,
            contributions=records,
            rows_together=2 * plan.physical_batch_size + 32,  # a block rarely holds more
        ),
    )


def train_privately(
    gradients: PerSampleGradients,
    records: Records,
    *,
    config: TrainingConfig,
    plan: DPSGDPlan,
    batch_stream: BatchStream,
    noise_for: NoiseFor,
    device: torch.device,
    dropout_seed: int = 0,
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
        dropout_seed: public; masks depend on it, the step and the block, not on who was drawn.
    """
    model = gradients.model
    optimizer = private_optimizer(make_optimizer(model, config), plan, records=len(records))
    block = plan.records_per_block(sum(p.numel() for p in gradients.parameters))
    inputs, targets = to_tensors(records, device)
    losses: list[Tensor] = []
    model.train()
    if device.type == "cuda":  # its default rounds products to 11 bits, more than is charged for
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    for step in range(plan.steps):
        optimizer.start_sum()
        for part in poisson_batch(len(records), plan, batch_stream(step), block=block):
            seed_dropout(dropout_seed + 1000003 * step + int(part[0]) // block, device)
            x, y = to_input(inputs[part]), targets[part]
            losses.append(gradients.add(optimizer, x, y))
        optimizer.noisy_step(step, noise_for)
    mean = float(torch.nanmean(torch.cat(losses).double())) if losses else 0.0
    return LocalResult(loss=mean if np.isfinite(mean) else 0.0, steps=plan.steps)


def poisson_batch(
    n: int, plan: DPSGDPlan, rng: np.random.Generator, block: int | None = None
) -> Iterator[Tensor]:
    """Each of n records with probability q, block by block, without empty pieces.

    Args:
        n: how many records there are.
        plan: has q and the most records that are in memory at once.
        rng: the secret generator of this batch.
        block: see `DPSGDPlan.records_per_block`.
    """
    if plan.sample_rate >= 1.0:
        chosen = np.arange(n)
    else:
        chosen = np.flatnonzero(rng.random(n) < plan.sample_rate)
    size = block or plan.records_per_block(1)
    for members in np.split(chosen, np.searchsorted(chosen, np.arange(size, n, size))):
        for start in range(0, len(members), plan.physical_batch_size):
            yield torch.from_numpy(members[start : start + plan.physical_batch_size])
