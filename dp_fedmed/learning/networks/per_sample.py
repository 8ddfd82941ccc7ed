"""Clipped per-record gradients of one network, summed in float64.

The guarantee kept here: every row that is added belongs to one record and has norm at most C. A
batch with another number of rows than records is refused, whatever the network did with it.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from opacus.grad_sample import GradSampleHooks
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from dp_fedmed.learning.networks.task import Task

# Inputs need no gradient, which Opacus' hooks allow for; torch warns of it all the same.
warnings.filterwarnings("ignore", message="Full backward hook is firing")


class RowsNotRecords(ValueError):
    """A layer has another number of gradient rows than there are records in the batch."""


class NetworkKeepsState(ValueError):
    """A network changed itself in a training pass: what it saw would outlast the pass."""


class ClippedSum(Protocol):
    """Where clipped gradients go."""

    def add_clipped(self, per_sample: Sequence[Tensor]) -> None:
        """Add per-sample gradients, one tensor per parameter, each record clipped to C."""


#: What Opacus' hooks and torch itself keep in a module between passes.
_BOOKKEEPING = frozenset(nn.Module().__dict__) | frozenset(
    ("activations", "max_batch_len", "autograd_grad_sample_hooks", "ft_compute_sample_grad")
)


def state_of(model: nn.Module) -> dict[str, object]:
    """What a network remembers, by module and name: a value that is equal only if nothing changed.

    Tensors are known by their place in memory and how often they were written to, containers by
    their size and items. State outside the modules (globals, closures) is not seen.
    """
    found: dict[str, object] = {}
    for name, module in model.named_modules():
        tensors = {**module._parameters, **module._buffers}
        others = {k: v for k, v in module.__dict__.items() if k not in _BOOKKEEPING}
        for key, value in (tensors | others).items():
            found[f"{name}.{key}".lstrip(".")] = _mark(value)
    return found


def _mark(value: object) -> object:
    if isinstance(value, Tensor):
        return (value.data_ptr(), value._version, tuple(value.shape))
    if isinstance(value, np.ndarray):
        return (id(value), value.tobytes())
    if isinstance(value, int | float | str | bytes | None):
        return repr(value)  # NaN is not equal to itself
    if isinstance(value, list | tuple | set | dict | deque):
        held = value.values() if isinstance(value, dict) else value
        return (len(value), *(_mark(item) for item in list(held)[:64]))
    return id(value)


def refuse_changed(before: dict[str, object], model: nn.Module) -> None:
    """Refuses a network that is not what it was before a training pass."""
    after = state_of(model)
    changed = [key for key in before.keys() | after.keys() if before.get(key) != after.get(key)]
    if changed:
        raise NetworkKeepsState(
            f"{min(changed)!r} changes in a training pass: what a network remembers of a batch "
            "goes into later gradients, or leaves with the weights, without clipping or noise"
        )


class PerSampleGradients:
    """Per-record gradients of one model in one of two ways.

    `hooks` are Opacus' formulas by layer, on a whole batch. `functorch` runs the whole network on
    one record at a time, vectorised: right by construction for any network that torch can
    vectorise, with one dropout mask for all records, so that no record's mask depends on who else
    is in the batch. Ghost clipping is not offered: it adds gradients that it never sees, by norms
    in which terms cancel, and a crafted record was let through with 10¹⁰·C.

    Made once for a model and kept: hooks stay attached, and are silent outside training.
    """

    def __init__(self, model: nn.Module, task: Task, mode: str) -> None:
        if mode == "auto":
            raise ValueError("grad_mode=auto must be settled first: see record_check.settle_mode")
        self.model, self.task, self.mode = model, task, mode
        model.train()
        self.names = [name for name, p in model.named_parameters() if p.requires_grad]
        # Opacus hangs grad_sample on parameters, which their type does not know.
        self.parameters: list[Any] = [p for p in model.parameters() if p.requires_grad]
        hooked = mode == "hooks"
        self._hooks = GradSampleHooks(model, loss_reduction="sum") if hooked else None

    def close(self) -> None:
        """Take the hooks off."""
        self.reset()
        if self._hooks is not None:
            self._hooks.remove_hooks()

    def reset(self) -> None:
        """Forget a pass that was broken off: Opacus would mix it into the next one."""
        for module in self.model.modules():
            for left in ("activations", "max_batch_len"):
                module.__dict__.pop(left, None)
        for p in self.parameters:
            if hasattr(p, "_current_grad_sample"):
                del p._current_grad_sample
            if hasattr(p, "_forward_counter"):
                p._forward_counter = 0
        if self._hooks is not None:
            self._hooks.enable_hooks()
        self._clear()

    def add(self, optimizer: ClippedSum, x: Tensor, y: Tensor) -> Tensor:
        """Adds the clipped gradients of these records to a sum; returns their losses."""
        try:
            before = state_of(self.model)
            losses, rows = self.rows(x, y)
            refuse_changed(before, self.model)
            optimizer.add_clipped(rows)
            return losses
        except BaseException:
            self.reset()
            raise

    def rows(self, x: Tensor, y: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The records' losses, and their gradients: one tensor per parameter, a row per record.

        One record alone is computed beside a copy of itself: a batch of one takes other kernels,
        which round otherwise, so that a record could be told by the rounding of its neighbour.
        """
        alone = len(x) == 1
        if alone:
            x, y = x.repeat_interleave(2, dim=0), y.repeat_interleave(2, dim=0)
        losses, rows = self._vectorised(x, y) if self._hooks is None else self._hooked(x, y)
        for name, row in zip(self.names, rows, strict=True):
            self._require_rows(name, row, len(x))
        return (losses[:1], [row[:1] for row in rows]) if alone else (losses, rows)

    def _require_rows(self, name: str, rows: object, records: int) -> None:
        if isinstance(rows, Tensor) and len(rows) == records:
            return
        layer = name.rpartition(".")[0]
        kind = type(self.model.get_submodule(layer)).__name__
        count = "no gradient of its own"
        if isinstance(rows, Tensor):
            count = f"{len(rows)} gradient rows"
        raise RowsNotRecords(
            f"layer {layer or name!r} ({kind}) has {count} for a batch of {records} records"
        )

    def _hooked(self, x: Tensor, y: Tensor) -> tuple[Tensor, list[Tensor]]:
        losses = self.task.record_losses(self.model(x), y)
        self._clear()
        losses.sum().backward()  # type: ignore[no-untyped-call]
        rows = [p.grad_sample for p in self.parameters]
        self._clear()
        return losses.detach(), rows

    def _vectorised(self, x: Tensor, y: Tensor) -> tuple[Tensor, list[Tensor]]:
        weights = {n: p.detach() for n, p in self.model.named_parameters() if p.requires_grad}
        if not len(x):
            return x.new_zeros(0), [w.new_zeros((0, *w.shape)) for w in weights.values()]

        def loss_of(weights: dict[str, Tensor], one: Tensor, target: Tensor) -> Any:
            logits = functional_call(self.model, weights, (one.unsqueeze(0),))
            loss = self.task.record_losses(logits, target.unsqueeze(0)).sum()
            return loss, loss

        each = vmap(grad(loss_of, has_aux=True), in_dims=(None, 0, 0), randomness="same")
        rows, losses = each(weights, x, y)
        return losses.detach(), [rows[name] for name in self.names]

    def _clear(self) -> None:
        for p in self.parameters:
            p.grad = None
            p.grad_sample = None
