"""Whether a network and its loss keep records apart, tried before anything is spent.

The guarantee kept here: the per-record gradients that will be clipped are those that plain autograd
gives each record alone. Tried on the network that the user brought, in the mode that will be used,
with trainable weights moved to random values (a head that starts at zero hides everything), in
float64, and every pass on a new copy, so that nothing is used up by looking.

What a few random records do not trigger cannot be found so. Therefore networks with code of their
own are computed one record at a time (`functorch`) unless the user insists.
"""

from __future__ import annotations

import copy
import functools
import logging
import random

import numpy as np
import torch
from torch import Tensor, nn

from dp_fedmed.errors import ConfigError
from dp_fedmed.learning.networks.dp_sgd import KeyedDPOptimizer
from dp_fedmed.learning.networks.local_training import seed_dropout
from dp_fedmed.learning.networks.per_sample import PerSampleGradients, refuse_changed, state_of
from dp_fedmed.learning.networks.task import Task, to_input
from dp_fedmed.privacy.mechanisms.dp_sgd import DPSGD

logger = logging.getLogger(__name__)

#: Of a record's gradient; float64 differs by about 1e-12, float32 by how other sizes are rounded.
TOLERANCE, TOLERANCE_FLOAT32 = 1e-5, 1e-4
#: Of a record's loss when another record changes: the same sizes are rounded alike.
COUPLING, COUPLING_FLOAT32 = 1e-9, 1e-6
BATCHES = (2, 3)
COUPLED = 16  # records of the batch in which one is changed
SCALES = (1.5, 0.0, 1e2, 1e6)  # of the change
TRIES = 3  # random weights and records; one of them must give gradients to look at
LARGE = 2**20  # weights; one try takes seconds there
#: Modules whose code is known to treat the records of a batch alike, whatever their values.
KNOWN = ("torch.nn.", "torchvision.", "dp_fedmed.models", "opacus.")
_CPU = torch.device("cpu")


def settle_mode(
    model: nn.Module, task: Task, x: Tensor, y: Tensor, *, wanted: str, classes: int
) -> str:
    """The mode in which this network's gradients are really per record; refused if there is none.

    Args:
        model: left as it is.
        task: has the loss.
        x: records of the kind that it will be given; only their shape and type matter.
        y: their targets.
        wanted: `auto` for the first that is right.
        classes: integer targets are below it.
    """
    weights = sum(p.numel() for p in model.parameters())
    numbers = range(TRIES if weights < LARGE else 1)
    try:
        tries = [_Probe(model, task, x, y, classes, n, torch.float64) for n in numbers]
        tries[0].losses(tries[0].copy(), tries[0].x, tries[0].y)
    except _DoesNotRun:  # a network with constants of its own in float32
        tries = [_Probe(model, task, x, y, classes, n, torch.float32) for n in numbers]
    for probe in tries:
        probe.refuse_coupled_records(COUPLED if weights < LARGE else max(BATCHES))
    if not any(probe.has_gradients() for probe in tries):
        raise ConfigError(
            "model._target_: no trainable weight has a gradient with random weights and records, "
            "so nothing can be trained or checked; see that the loss depends on the weights"
        )
    return _first_right(tries, wanted, modes_to_try(model, wanted))


def modes_to_try(model: nn.Module, wanted: str) -> tuple[str, ...]:
    """By rule, never by the clock: hooks are for networks of known code, or for who asks for them.

    >>> modes_to_try(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), "auto")
    ('hooks', 'functorch')
    """
    if wanted != "auto":
        return (wanted,)
    known = all(f"{type(module).__module__}.".startswith(KNOWN) for module in model.modules())
    return ("hooks", "functorch") if known else ("functorch",)


def _first_right(tries: list[_Probe], wanted: str, modes: tuple[str, ...]) -> str:
    reasons: list[str] = []
    for mode in modes:
        found = next(filter(None, (probe.problem(mode) for probe in tries)), None)
        if found is None:
            if reasons:
                logger.info("per-record gradients by %s, since %s", mode, "; ".join(reasons))
            return mode
        reasons.append(f"{mode}: {found}")
    advice = "use layers that treat records one by one"
    if wanted != "auto":
        advice = "give privacy.sample.grad_mode=auto"
    elif "hooks" not in modes:
        advice += (
            ", or, if you know that your network does so for all values and batch sizes, give "
            "privacy.sample.grad_mode=hooks"
        )
    raise ConfigError(
        f"privacy.sample.grad_mode={wanted}: the gradients of this network are not one per record, "
        f"so clipping them bounds nothing ({'; '.join(reasons)}); {advice}"
    )


class _DoesNotRun(ConfigError):
    """The network fails on records of the right shape."""


class _Probe:
    """A copy of the network with random weights, and random records to show it."""

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        x: Tensor,
        y: Tensor,
        classes: int,
        number: int,
        dtype: torch.dtype,
    ) -> None:
        self.task, self.seed = task, 7919 * (number + 1)
        self.tolerance, self.coupling = TOLERANCE, COUPLING
        if dtype is torch.float32:
            self.tolerance, self.coupling = TOLERANCE_FLOAT32, COUPLING_FLOAT32
        draw = torch.Generator().manual_seed(self.seed)
        self.model = copy.deepcopy(model).to(_CPU, dtype)
        with torch.no_grad():
            for p in self.model.parameters():
                if p.requires_grad:
                    fan_in = max(1, p[0].numel() if p.ndim > 1 else 4)
                    p.add_(torch.randn(p.shape, generator=draw).to(dtype) / fan_in**0.5)
        shape = (COUPLED, *x.shape[1:])
        if x.dtype == torch.uint8:
            inputs = torch.randint(0, 256, shape, generator=draw, dtype=torch.uint8)
        else:
            inputs = torch.randn(shape, generator=draw)
        self.x = to_input(inputs).to(dtype)
        targets = (COUPLED, *y.shape[1:])
        if y.is_floating_point():
            self.y = torch.randn(targets, generator=draw).to(dtype)
        else:
            self.y = torch.randint(0, classes, targets, generator=draw)

    def copy(self) -> nn.Module:
        """A network that has seen nothing yet."""
        return copy.deepcopy(self.model).train()

    def losses(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """The records' losses in one batch, with the same random numbers for every pass."""
        seed_dropout(self.seed, _CPU)
        try:
            return self.task.record_losses(model(x), y)
        except Exception as error:  # the user's own code: whatever it raises is named
            raise _DoesNotRun(
                f"model._target_: the network cannot train on a batch of {len(x)} random records: "
                f"{type(error).__name__}: {error}"
            ) from error

    def refuse_coupled_records(self, size: int) -> None:
        """Refuses a network or loss where a record's loss changes with another record."""
        x, y = self.x[:size], self.y[:size]
        with torch.no_grad():
            before = self.losses(self.copy(), x, y)
            if before.shape != (size,):
                raise ConfigError(
                    f"task.loss: the loss of {size} records has shape {tuple(before.shape)}: "
                    "DP-SGD needs one number per record"
                )
            moved = max(self._moved(before, x, y, n) for n in {0, size // 2, size - 1})
        if moved > self.coupling:
            raise ConfigError(
                "model._target_ with task.loss couples records: a record's loss changes by "
                f"{moved:.2g} (relative) with another record of its batch{_normalisers(self.model)}"
                ", so clipping each record bounds nothing; use layers and losses that treat "
                "records one by one"
            )

    def _moved(self, before: Tensor, x: Tensor, y: Tensor, number: int) -> float:
        """How much the other records' losses change with this one, at the most."""
        moved = 0.0
        for scale in SCALES:
            changed = x.clone()
            changed[number] = changed[number].flip(-1) * scale + 0.25
            try:
                after = self.losses(self.copy(), changed, y)
            except _DoesNotRun:  # values that the network does not take
                continue
            apart = ((after - before).abs() / (before.abs() + 1e-3)).nan_to_num(0.0, posinf=1e9)
            apart[number] = 0.0
            moved = max(moved, float(apart.max()))
        return moved

    @functools.cached_property
    def alone(self) -> list[list[Tensor]]:
        """Each record's gradient by plain autograd, with nothing else in the batch."""
        found = []
        for n in range(max(BATCHES)):
            model = self.copy()
            weights = [p for p in model.parameters() if p.requires_grad]
            loss = self.losses(model, self.x[n : n + 1], self.y[n : n + 1]).sum()
            own = torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True)
            found.append(list(own))
        return found

    def has_gradients(self) -> bool:
        """Whether there is anything to compare."""
        return any(bool(g.abs().max() > 0) for own in self.alone for g in own)

    def problem(self, mode: str) -> str | None:
        """What is wrong with this mode for this network; None if it is right."""
        norms = [float(torch.stack([g.norm() for g in own]).norm()) for own in self.alone]
        limit = sorted(norms)[len(norms) // 2] or 1.0  # some are clipped, some are not
        try:
            self._refuse_randomness(mode)
            for size in BATCHES:
                found = self._compare(mode, self.alone[:size], norms[:size], limit)
                if found is not None:
                    return found
        except Exception as error:  # the user's own network: whatever it raises is a reason
            return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        return None

    def _refuse_randomness(self, mode: str) -> None:
        """Refuses random numbers that are not torch's, or that differ by place in the batch.

        Drawn by place, as in hooks, one record more shifts everybody's.
        """
        model = self.copy()
        others = _other_generators()
        seed_dropout(self.seed, _CPU)
        drawn = torch.get_rng_state()
        before = state_of(model)
        self.task.record_losses(model(self.x[:2]), self.y[:2])
        refuse_changed(before, model)
        if others != _other_generators():
            raise ValueError("it draws random numbers that are not torch's")
        if mode == "hooks" and not torch.equal(drawn, torch.get_rng_state()):
            raise ValueError("it draws random numbers by place in the batch (dropout)")

    def _compare(
        self, mode: str, alone: list[list[Tensor]], norms: list[float], limit: float
    ) -> str | None:
        size = len(alone)
        x, y = self.x[:size], self.y[:size]
        gradients = PerSampleGradients(self.copy(), self.task, mode)
        plan = DPSGD(
            noise_multiplier=1.0,
            max_grad_norm=limit,
            sample_rate=1.0,
            steps=1,
            grad_mode=mode,
            physical_batch_size=size,
        )
        steps = torch.optim.SGD(gradients.parameters, lr=0.0)
        optimizer = KeyedDPOptimizer(steps, plan, expected_batch_size=size)
        optimizer.start_sum()
        seed_dropout(self.seed, _CPU)
        before = state_of(gradients.model)
        rows = gradients.rows(x, y)[1]
        refuse_changed(before, gradients.model)
        for n, (own, norm) in enumerate(zip(alone, norms, strict=True)):
            found = [row[n] for row in rows]
            if (wrong := self._differing(gradients, found, own, norm)) is not None:
                return wrong
        optimizer.add_clipped(rows)
        shares = [min(1.0, limit / norm) if norm else 0.0 for norm in norms]
        wanted = [
            sum((s * own[i] for s, own in zip(shares, alone, strict=True)), torch.zeros(()))
            for i in range(len(gradients.names))
        ]
        return self._differing(gradients, optimizer.totals, wanted, limit)

    def _differing(
        self,
        gradients: PerSampleGradients,
        found: list[Tensor],
        wanted: list[Tensor],
        scale: float,
    ) -> str | None:
        """The layers whose values are not the wanted ones."""
        allowed = self.tolerance * max(scale, 1e-12)
        wrong = [
            name.rpartition(".")[0] or name
            for name, a, b in zip(gradients.names, found, wanted, strict=True)
            if not bool((a - b).norm() <= allowed)
        ]
        if not wrong:
            return None
        layers = dict.fromkeys(wrong)
        kinds = [f"{layer!r} ({type(_layer(gradients.model, layer)).__name__})" for layer in layers]
        more = f" and {len(kinds) - 3} more" if len(kinds) > 3 else ""
        return (
            f"layer {', '.join(kinds[:3])}{more} has other gradients in a batch than for one "
            "record alone"
        )


def _other_generators() -> tuple[object, bytes, int]:
    """The state of Python's and NumPy's own generators."""
    _, keys, position, *_ = np.random.get_state()  # noqa: NPY002
    return random.getstate(), np.asarray(keys).tobytes(), int(position)


def _layer(model: nn.Module, name: str) -> nn.Module:
    try:
        return model.get_submodule(name)
    except AttributeError:  # a weight of the network itself
        return model


def _normalisers(model: nn.Module) -> str:
    """The layers that are known to mix a batch, for the error's sentence."""
    named = [
        f"{name!r} ({type(module).__name__})"
        for name, module in model.named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm)
    ]
    return f" (layer {', '.join(named[:3])})" if named else ""
