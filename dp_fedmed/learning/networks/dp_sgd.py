"""DP-SGD at one client: Poisson batches, per-record clipping, keyed noise (Abadi et al. 2016).

The guarantee kept here: every step's released gradient is the sum of contributions of norm at most
C, one per record of a Poisson batch, plus N(0, σ²Δ²), added in integers from the client's secret
stream; Δ is C and what rounding can add to it. Also for empty batches, and for records whose
gradient is not finite, which contribute zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from opacus.optimizers import DPOptimizer
from torch import Tensor

from dp_fedmed.data.records import Records
from dp_fedmed.learning.networks.local_training import (
    LocalResult,
    LocalTraining,
    make_optimizer,
    seed_dropout,
)
from dp_fedmed.learning.networks.per_sample import PerSampleGradients
from dp_fedmed.learning.networks.task import to_input, to_tensors
from dp_fedmed.privacy.mechanisms.dp_sgd import DPSGD, Sum
from dp_fedmed.privacy.mechanisms.private_sum import Ints
from dp_fedmed.privacy.streams.noise import NoiseStream

BatchStream = Callable[[int], np.random.Generator]
NoiseFor = Callable[[int, Sum], NoiseStream]


class KeyedDPOptimizer(DPOptimizer):  # type: ignore[misc]
    """Opacus' optimizer with our sum and noise: float64 and integers, keyed ChaCha20.

    Opacus adds float32 noise to a float32 sum, whose low bits give records away, lets one NaN
    record poison the sum, and divides by a realised count; here the denominator is the constant
    q·n.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        mechanism: DPSGD,
        *,
        expected_batch_size: float,
        sensitivity: float | None = None,
    ) -> None:
        super().__init__(
            optimizer,
            noise_multiplier=mechanism.noise_multiplier,
            max_grad_norm=mechanism.max_grad_norm,
            expected_batch_size=expected_batch_size,
        )
        self.mechanism, self.sensitivity = mechanism, sensitivity
        self.totals: list[Tensor] = []

    def start_sum(self) -> None:
        """Begin a logical batch: an empty one sums to zero."""
        self.totals = [torch.zeros(p.shape, dtype=torch.float64) for p in self.params]

    def add_clipped(self, per_sample: Sequence[Tensor]) -> None:
        """Add per-sample gradients, one tensor per parameter, each record clipped to C."""
        rows = [g.reshape(len(g), -1).cpu() for g in per_sample]
        norms = torch.stack([_norms(r) for r in rows]).norm(dim=0)
        factors = torch.from_numpy(self.mechanism.bound(norms.numpy()))
        if not bool(torch.isfinite(norms).all()):
            rows = [torch.where(torch.isfinite(norms)[:, None], r, 0.0) for r in rows]
        for total, r in zip(self.totals, rows, strict=True):
            flat = total.view(-1)
            for part in _in_parts(r):
                flat += factors[part] @ r[part].double()

    def noisy_step(self, step: int, noise_for: NoiseFor) -> None:
        """Release the finished sum over the expected batch, and step with it."""
        released = self.mechanism.release(
            [total.numpy() for total in self.totals],
            lambda exact: noise_for(step, exact),
            sensitivity=self.sensitivity,
            denominator=self.expected_batch_size,
        )
        for p, value in zip(self.params, released, strict=True):
            p.grad = torch.from_numpy(value).to(p.device, p.dtype)
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
    optimizer: torch.optim.Optimizer, plan: DPSGD, *, records: int
) -> KeyedDPOptimizer:
    """The optimizer of one client's round, with the sensitivity that its noise is scaled to."""
    plan.require_room(records)
    weights = sum(p.numel() for group in optimizer.param_groups for p in group["params"])
    return KeyedDPOptimizer(
        optimizer,
        plan,
        expected_batch_size=plan.sample_rate * records,
        sensitivity=plan.sensitivity(weights=weights, records=records),
    )


def train_privately(
    gradients: PerSampleGradients,
    records: Records,
    *,
    config: LocalTraining,
    plan: DPSGD,
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
    made = make_optimizer(gradients.model, config)
    optimizer = private_optimizer(made, plan, records=len(records))
    losses: list[Tensor] = []
    for step in _summed_steps(
        gradients, optimizer, records, plan, batch_stream, device, dropout_seed, losses
    ):
        optimizer.noisy_step(step, noise_for)
    mean = float(torch.nanmean(torch.cat(losses).double())) if losses else 0.0
    return LocalResult(loss=mean if np.isfinite(mean) else 0.0, steps=plan.steps)


def summed_gradients(
    gradients: PerSampleGradients,
    records: Records,
    *,
    config: LocalTraining,
    plan: DPSGD,
    batch_stream: BatchStream,
    device: torch.device,
    dropout_seed: int = 0,
) -> dict[str, Ints]:
    """The sum of one step's clipped gradients in integers, for a server that is to noise it.

    Arguments are those of `train_privately`; the model stays as it is.
    """
    if plan.steps != 1:
        raise ValueError(f"a second step needs a first that is noised; there are {plan.steps}")
    made = make_optimizer(gradients.model, config)
    optimizer = private_optimizer(made, plan, records=len(records))
    for _ in _summed_steps(
        gradients, optimizer, records, plan, batch_stream, device, dropout_seed, []
    ):
        pass
    steps = plan.exact_sum([total.numpy() for total in optimizer.totals])
    names = {id(p): name for name, p in gradients.model.named_parameters()}
    return {names[id(p)]: own for p, own in zip(optimizer.params, steps, strict=True)}


def _summed_steps(
    gradients: PerSampleGradients,
    optimizer: KeyedDPOptimizer,
    records: Records,
    plan: DPSGD,
    batch_stream: BatchStream,
    device: torch.device,
    dropout_seed: int,
    losses: list[Tensor],
) -> Iterator[int]:
    """Each step's number, when `optimizer.totals` holds the sum of its batch."""
    block = plan.records_per_block(sum(p.numel() for p in gradients.parameters))
    inputs, targets = to_tensors(records, device)
    gradients.model.train()
    if device.type == "cuda":  # its default rounds products to 11 bits, more than is charged for
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    for step in range(plan.steps):
        optimizer.start_sum()
        for part in poisson_batch(len(records), plan, batch_stream(step), block=block):
            seed_dropout(dropout_seed + 1000003 * step + int(part[0]) // block, device)
            x, y = to_input(inputs[part]), targets[part]
            losses.append(gradients.add(optimizer, x, y))
        yield step


def poisson_batch(
    n: int, plan: DPSGD, rng: np.random.Generator, block: int | None = None
) -> Iterator[Tensor]:
    """Each of n records with probability q, block by block, without empty pieces.

    Args:
        n: how many records there are.
        plan: has q and the most records that are in memory at once.
        rng: the secret generator of this batch.
        block: see `DPSGD.records_per_block`.
    """
    if plan.sample_rate >= 1.0:
        chosen = np.arange(n)
    else:
        chosen = np.flatnonzero(rng.random(n) < plan.sample_rate)
    size = block or plan.records_per_block(1)
    for members in np.split(chosen, np.searchsorted(chosen, np.arange(size, n, size))):
        for start in range(0, len(members), plan.physical_batch_size):
            yield torch.from_numpy(members[start : start + plan.physical_batch_size])
