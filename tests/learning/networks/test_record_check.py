"""Networks that a stranger brings: their gradients are one per record, or they are refused."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dp_fedmed.errors import ConfigError
from dp_fedmed.learning.networks.dp_sgd import KeyedDPOptimizer
from dp_fedmed.learning.networks.local_training import seed_dropout
from dp_fedmed.learning.networks.per_sample import (
    NetworkKeepsState,
    PerSampleGradients,
)
from dp_fedmed.learning.networks.record_check import settle_mode
from dp_fedmed.learning.networks.task import Task, make_task
from dp_fedmed.models import SmallCNN, UNet
from dp_fedmed.privacy.mechanisms.dp_sgd import DPSGD

X = torch.randint(0, 256, (6, 1, 8, 8), dtype=torch.uint8, generator=torch.manual_seed(0))
Y = torch.arange(6) % 3
C = 0.5
MODES = ["auto", "hooks", "functorch"]


class FoldsPatches(nn.Module):
    """A multiple-instance network: patches become rows of the batch, and are averaged back."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.relu(self.patch(x.reshape(-1, 4)))
        return self.head(rows).reshape(len(x), -1, 3).mean(1)


class CentresUnderAZeroHead(nn.Module):
    """Features minus the batch mean, under a head that starts at zero: every loss is log 3."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.head = nn.Linear(64, 8), nn.Linear(8, 3)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        z = self.features(x.flatten(1))
        return self.head(z - z.mean(0))


class LooksAtItsNeighbour(nn.Module):
    """At most a hundred-thousandth of the next record: too little for a tolerance in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        return self.head(torch.cat([flat[:-1] + 1e-5 * flat[1:].tanh(), flat[-1:]]))


class UsesWeightsOutsideTheLayer(nn.Module):
    """The projection's weight is used by the layer and, again, as a plain tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.proj, self.head = nn.Linear(64, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        return self.head(torch.relu(self.proj(flat))) + 9 * F.linear(flat, self.proj.weight)[:, :3]


class FrozenBatchNorm(nn.Module):
    """A layer without trainable weights that still mixes the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(64).requires_grad_(False), nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x.flatten(1)))


class AddsInPlace(nn.Module):
    """`out += identity`, as torchvision's networks do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Conv2d(1, 1, 3, padding=1), nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        out = self.first(x)
        out += x
        return self.head(F.relu(out, inplace=True).flatten(1))


class HasConstants(nn.Module):
    """Makes a float32 constant of its own, so that it does not run in float64."""

    def __init__(self, coupling: float = 0.0) -> None:
        super().__init__()
        self.head, self.coupling = nn.Linear(64, 3), coupling

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1) + self.coupling * x.flatten(1).roll(1, 0)
        return F.linear(flat @ torch.eye(64), self.head.weight * 1.0, self.head.bias)


class CalibratesOnce(nn.Module):
    """Keeps the first batch's mean: as a weight, a buffer, an attribute, or as a running mean."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.head, self.where = nn.Linear(64, 3), where
        self.register_buffer("mean", torch.zeros(64))
        self.held: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        with torch.no_grad():
            if self.where == "weight" and not self.held:
                self.held.append(torch.zeros(()))
                self.head.weight.add_(flat.mean())
            elif self.where == "buffer":
                self.mean.mul_(1 - 1e-6).add_(1e-6 * flat.mean(0))
            elif self.where == "attribute" and not self.held:
                self.held.append(flat.mean(0))
        shift = self.held[0] if self.where == "attribute" else self.mean
        return self.head(flat - shift)


class ScalesByValue(nn.Module):
    """Bytes or not? Decided by the largest value of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((x / 255 if x.max() > 1e9 else x).flatten(1))


class RollsDice(nn.Module):
    """Python's own generator decides how a batch is treated."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.flatten(1) * (2.0 if random.random() < 0.01 else 1.0))


class Shares(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 3)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(self.first(x.flatten(1)).relu()))


def dropout(rate: float = 0.5) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Dropout(rate), nn.Linear(32, 3))


def task() -> Task:
    return make_task("classification", "cross_entropy")


def settled(model: nn.Module, wanted: str = "auto") -> str:
    return settle_mode(model, task(), X, Y, wanted=wanted, classes=3)


@pytest.mark.parametrize(
    ("make", "mode"),
    [
        (lambda: SmallCNN((1, 8, 8), 3), "hooks"),
        (FoldsPatches, "functorch"),
        (UsesWeightsOutsideTheLayer, "functorch"),
        (AddsInPlace, "functorch"),
        (dropout, "functorch"),
        (lambda: dropout(0.001), "functorch"),
        (Shares, "functorch"),
    ],
)
def test_auto_takes_the_first_mode_that_is_right(make: Callable[[], nn.Module], mode: str) -> None:
    model = make()
    before = [p.clone() for p in model.parameters()]
    assert settled(model) == mode
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (FoldsPatches, "'patch' (Linear)"),
        (UsesWeightsOutsideTheLayer, "'proj'"),
        (lambda: dropout(0.001), "random numbers by place in the batch"),
    ],
)
def test_hooks_that_are_wrong_are_refused_by_layer(
    make: Callable[[], nn.Module], reason: str
) -> None:
    with pytest.raises(ConfigError, match="not one per record") as error:
        settled(make(), "hooks")
    assert reason in str(error.value)
    assert "privacy.sample.grad_mode=hooks" in str(error.value)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("where", ["weight", "buffer", "attribute"])
def test_a_network_that_remembers_a_batch_is_refused(where: str, mode: str) -> None:
    with pytest.raises(
        ConfigError, match=r"changes in a training pass|not one per record|couples records"
    ):
        settled(CalibratesOnce(where), mode)


@pytest.mark.parametrize("where", ["weight", "buffer", "attribute"])
def test_a_network_that_remembers_a_batch_adds_nothing(where: str) -> None:
    """Also where nobody checked before."""
    gradients = PerSampleGradients(CalibratesOnce(where), task(), "hooks")
    optimizer = summing(gradients)
    with pytest.raises(NetworkKeepsState, match="changes in a training pass"):
        gradients.add(optimizer, X.float(), Y)
    assert all(float(total.abs().sum()) == 0.0 for total in optimizer.totals)
    gradients.close()


@pytest.mark.parametrize("make", [ScalesByValue, RollsDice])
def test_what_probing_cannot_find_is_not_left_to_probing(make: Callable[[], nn.Module]) -> None:
    """Code that goes by values nobody tried is computed one record at a time, or refused."""
    with pytest.raises(ConfigError, match=r"grad_mode=auto|couples records"):
        settled(make())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("make", [CentresUnderAZeroHead, LooksAtItsNeighbour, FrozenBatchNorm])
def test_coupled_records_are_refused_in_every_mode(
    make: Callable[[], nn.Module], mode: str
) -> None:
    with pytest.raises(ConfigError, match="couples records"):
        settled(make(), mode)


def test_a_network_that_does_not_run_in_float64_is_checked_in_float32() -> None:
    with pytest.raises(RuntimeError):
        HasConstants().double()(torch.zeros(1, 64, dtype=torch.float64))
    assert settled(HasConstants()) == "functorch"
    with pytest.raises(ConfigError, match="couples records"):
        settled(HasConstants(coupling=1e-3))


def test_a_loss_that_couples_records_is_refused() -> None:
    class Contrastive(type(task())):  # type: ignore[misc]
        def record_losses(self, logits: Tensor, targets: Tensor) -> Tensor:
            return -F.log_softmax(logits @ logits.T, dim=1).diagonal()

    with pytest.raises(ConfigError, match="couples records"):
        settle_mode(
            SmallCNN((1, 8, 8), 3),
            Contrastive("cross_entropy"),
            X,
            Y,
            wanted="auto",
            classes=3,
        )


def test_segmentation_keeps_its_records_apart() -> None:
    segment = make_task("segmentation", "dice_ce")
    masks = torch.zeros(6, 8, 8, dtype=torch.int64)
    model = UNet((1, 8, 8), 2, channels=[4, 8])
    assert settle_mode(model, segment, X, masks, wanted="auto", classes=2) == "hooks"


def summing(gradients: PerSampleGradients) -> KeyedDPOptimizer:
    optimizer = KeyedDPOptimizer(
        torch.optim.SGD(gradients.parameters, lr=0.1),
        DPSGD(
            noise_multiplier=1.0,
            max_grad_norm=C,
            sample_rate=1.0,
            steps=1,
            grad_mode=gradients.mode,
            physical_batch_size=1000,
        ),
        expected_batch_size=1.0,
    )
    optimizer.start_sum()
    return optimizer


def movement(model: nn.Module, mode: str, absent: int) -> float:
    """How far one record moves the clipped sum, through the real path, in units of C."""
    x = X.float() / 127.5 - 1.0
    gradients = PerSampleGradients(model, task(), mode)

    def total(rows: list[int]) -> Tensor:
        optimizer = summing(gradients)
        seed_dropout(1, torch.device("cpu"))
        gradients.add(optimizer, x[rows], Y[rows])
        return torch.cat([t.flatten() for t in optimizer.totals])

    everyone = list(range(6))
    others = [i for i in everyone if i != absent]
    moved = float((total(everyone) - total(others)).norm()) / C
    gradients.close()
    return moved


@pytest.mark.parametrize(
    "make",
    [
        *(FoldsPatches, UsesWeightsOutsideTheLayer, AddsInPlace, dropout, FrozenBatchNorm),
        *(lambda: dropout(0.02), Shares),
    ],
)
def test_one_record_moves_the_sum_by_at_most_c_in_the_mode_that_is_chosen(
    make: Callable[[], nn.Module],
) -> None:
    torch.manual_seed(1)
    model = make()
    try:
        mode = settled(model)
    except ConfigError:
        assert make is FrozenBatchNorm
        return
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3.0)
    assert max(movement(model, mode, absent) for absent in range(6)) <= 1.0 + 1e-4


def test_the_rounding_of_a_row_with_its_batch_is_within_what_is_charged() -> None:
    """Rows of the same record in other batches differ by far less than the 2⁻¹⁸ that is charged."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = SmallCNN((1, 8, 8), 3)
    gradients = PerSampleGradients(model, task(), "hooks")
    x, y = torch.randn(32, 1, 8, 8), torch.arange(32) % 3
    whole = torch.cat([r.reshape(32, -1) for r in gradients.rows(x, y)[1]], dim=1).double()
    for kept in ([0, 5, 9], [7], list(range(1, 32))):
        part = gradients.rows(x[kept], y[kept])[1]
        rows = torch.cat([r.reshape(len(kept), -1) for r in part], dim=1).double()
        apart = (rows - whole[kept]).norm(dim=1) / whole[kept].norm(dim=1)
        assert float(apart.max()) < 2.0**-18
    gradients.close()


def test_the_check_looks_at_the_shape_of_records_alone() -> None:
    """The check draws its own records: the server's are not looked at."""
    model = SmallCNN((1, 8, 8), 3)
    zeros = torch.from_numpy(np.zeros((2, 1, 8, 8), np.uint8))
    assert settle_mode(model, task(), zeros, Y[:2], wanted="auto", classes=3) == "hooks"
