"""DP-SGD: one clipped sum in every mode, a record moves it by at most C, noise as claimed."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from dp_fedmed.config import GradMode, Loss, TaskConfig, TaskKind, TrainingConfig
from dp_fedmed.data.records import Records
from dp_fedmed.models import SmallCNN, UNet
from dp_fedmed.privacy.noise import NoiseStream
from dp_fedmed.tasks import Task, make_task
from dp_fedmed.tasks.dp_sgd import (
    DPSGDPlan,
    KeyedDPOptimizer,
    PerSampleGradients,
    coupling,
    fastest_mode,
    poisson_batch,
    train_privately,
)

CPU = torch.device("cpu")
MODES = [GradMode.hooks, GradMode.functorch, GradMode.ghost]
C = 0.7


def classification() -> Task:
    return make_task(TaskConfig())


def segmentation() -> Task:
    return make_task(TaskConfig(kind=TaskKind.segmentation, loss=Loss.dice_ce, metric="dice"))


def images(n: int) -> Records:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (n, 1, 8, 8), dtype=np.uint8)
    return Records(x, rng.integers(0, 3, n))


def masks(n: int) -> Records:
    rng = np.random.default_rng(0)
    return Records(
        rng.integers(0, 256, (n, 1, 8, 8), dtype=np.uint8), rng.integers(0, 2, (n, 8, 8))
    )


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Task], Callable[[int], Records]]] = {
    "cnn": (lambda: SmallCNN((1, 8, 8), 3, channels=[4, 8], hidden=8), classification, images),
    "unet": (lambda: UNet((1, 8, 8), 2, channels=[4, 8]), segmentation, masks),
}


def plan(**changes: object) -> DPSGDPlan:
    settings: dict[str, object] = {
        "noise_multiplier": 1.0,
        "max_grad_norm": C,
        "sample_rate": 1.0,
        "steps": 1,
        "grad_mode": GradMode.hooks,
        "physical_batch_size": 1000,
    }
    return DPSGDPlan(**{**settings, **changes})  # type: ignore[arg-type]


def clipped_sum(case: str, mode: GradMode, x: Tensor, y: Tensor, physical: int = 1000) -> Tensor:
    torch.manual_seed(0)
    model, task = CASES[case][0](), CASES[case][1]()
    gradients = PerSampleGradients(model, task, mode, C)
    optimizer = KeyedDPOptimizer(
        torch.optim.SGD(gradients.parameters, lr=0.1),
        noise_multiplier=1.0,
        max_grad_norm=C,
        expected_batch_size=1.0,
    )
    optimizer.start_sum()
    for start in range(0, len(x), physical):
        gradients.add(optimizer, x[start : start + physical], y[start : start + physical])
    return torch.cat([p.summed_grad.flatten() for p in gradients.parameters])


def by_hand(case: str, x: Tensor, y: Tensor) -> Tensor:
    """One backward pass a record, clipped with plain arithmetic."""
    torch.manual_seed(0)
    model, task = CASES[case][0](), CASES[case][1]()
    total = torch.zeros(sum(p.numel() for p in model.parameters()), dtype=torch.float64)
    for i in range(len(x)):
        model.zero_grad()
        task.record_losses(model(x[i : i + 1]), y[i : i + 1]).sum().backward()
        grad = torch.cat([p.grad.flatten() for p in model.parameters()]).double()  # type: ignore[union-attr]
        total += grad * min(1.0, C / float(grad.norm()))
    return total


def tensors(case: str, n: int = 6) -> tuple[Tensor, Tensor]:
    records = CASES[case][2](n)
    return torch.from_numpy(records.x).float() / 127.5 - 1, torch.from_numpy(records.y).long()


@pytest.mark.parametrize("case", list(CASES))
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_gives_the_sum_of_clipped_gradients(case: str, mode: GradMode) -> None:
    x, y = tensors(case)
    expected = by_hand(case, x, y)
    assert torch.allclose(clipped_sum(case, mode, x, y).double(), expected, atol=2e-5)
    assert torch.allclose(clipped_sum(case, mode, x, y, physical=2).double(), expected, atol=2e-5)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("scale", [1.0, 1e6, 1e30])
def test_one_record_moves_the_sum_by_at_most_c(mode: GradMode, scale: float) -> None:
    x, y = tensors("cnn")
    x = x.clone()
    x[2] *= scale
    with_it = clipped_sum("cnn", mode, x, y)
    others = [0, 1, 3, 4, 5]
    without = clipped_sum("cnn", mode, x[others], y[others])
    assert float((with_it - without).double().norm()) <= C * (1 + 1e-5)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_record_that_is_not_finite_contributes_nothing(mode: GradMode, bad: float) -> None:
    x, y = tensors("cnn")
    spoilt = x.clone()
    spoilt[2, 0, 0, 0] = bad
    others = [0, 1, 3, 4, 5]
    assert torch.allclose(
        clipped_sum("cnn", mode, spoilt, y),
        clipped_sum("cnn", mode, x[others], y[others]),
        atol=2e-5,
    )


def train(
    settings: DPSGDPlan,
    records: Records,
    *,
    batch_seed: int = 0,
    noise_seed: int = 0,
    lr: float = 1.0,
) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    model = CASES["cnn"][0]()
    before = copy.deepcopy(model)
    gradients = PerSampleGradients(model, classification(), settings.grad_mode, C)
    train_privately(
        gradients,
        records,
        config=TrainingConfig(lr=lr),
        plan=settings,
        batch_stream=lambda step: np.random.default_rng([batch_seed, step]),
        noise_for=lambda step, exact: NoiseStream.from_public_seed(1000 * noise_seed + step),
        device=CPU,
    )
    gradients.close()
    return before, model


def moved(before: nn.Module, after: nn.Module) -> Tensor:
    pairs = zip(before.parameters(), after.parameters(), strict=True)
    return torch.cat([(a - b).flatten() for b, a in pairs]).detach().double()


@pytest.mark.parametrize("mode", MODES)
def test_an_empty_batch_still_takes_a_step_of_pure_noise(mode: GradMode) -> None:
    settings = plan(sample_rate=1e-9, steps=1, noise_multiplier=2.0, grad_mode=mode)
    before, after = train(settings, images(50))
    expected_batch = 1e-9 * 50
    noise = -moved(before, after) * expected_batch / (2.0 * C)
    assert stats.kstest(noise.numpy(), "norm").pvalue > 1e-3


def test_noise_has_the_scale_that_is_accounted() -> None:
    """χ² on the noise that a training step really adds."""
    settings = plan(steps=1, noise_multiplier=3.0, sample_rate=1.0)
    records = images(20)
    loud = [moved(*train(settings, records, noise_seed=s)) for s in range(1, 5)]
    differences = torch.stack(
        [(a - b) * 20 / (3.0 * C) for a, b in zip(loud[::2], loud[1::2], strict=True)]
    )
    statistic = float((differences**2).sum() / 2)
    n = differences.numel()
    assert stats.chi2.cdf(statistic, n) > 1e-4
    assert stats.chi2.sf(statistic, n) > 1e-4


def test_the_denominator_is_the_expected_batch_not_the_realised_one() -> None:
    settings = plan(noise_multiplier=1e-2, sample_rate=0.5, steps=1)
    records = images(20)
    before, after = train(settings, records, batch_seed=1)
    chosen = torch.cat(list(poisson_batch(20, settings, np.random.default_rng([1, 0]))))
    assert len(chosen) != 10, "choose another seed: this one cannot tell the two apart"
    x, y = tensors("cnn", 20)
    exact = clipped_sum("cnn", GradMode.hooks, x[chosen], y[chosen]).double()
    step = -moved(before, after)
    assert torch.allclose(step, exact / 10.0, atol=5e-3)
    assert float(step @ exact / (exact @ exact)) == pytest.approx(1 / 10.0, rel=0.02)


def test_poisson_batches_have_the_mean_and_variance_of_coins() -> None:
    settings = plan(sample_rate=0.2, physical_batch_size=7)
    sizes = []
    for seed in range(300):
        parts = list(poisson_batch(100, settings, np.random.default_rng(seed)))
        assert all(len(part) <= 7 for part in parts)
        sizes.append(sum(map(len, parts)))
    assert np.mean(sizes) == pytest.approx(20, abs=0.8)
    assert np.var(sizes) == pytest.approx(16, rel=0.3)


def test_training_with_little_noise_learns() -> None:
    rng = np.random.default_rng(0)
    y = np.arange(120) % 3
    x = rng.integers(0, 60, (120, 1, 8, 8), dtype=np.uint8)
    x[np.arange(120), 0, y * 2] = 250
    records = Records(x, y)
    settings = plan(noise_multiplier=0.3, sample_rate=0.5, steps=60)
    _, after = train(settings, records, lr=0.5)
    assert classification().evaluate(after, records, CPU)["accuracy"] > 0.9


class MixesRecords(nn.Module):
    """Subtracts the batch mean: a record's loss depends on its neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        return self.head(flat - flat.mean(dim=0))


def test_coupled_records_are_found_and_separate_ones_are_not() -> None:
    assert coupling(MixesRecords(), classification(), images(8), CPU) > 0.01
    assert coupling(CASES["cnn"][0](), classification(), images(8), CPU) < 1e-4
    with_dropout = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 3))
    assert coupling(with_dropout, classification(), images(8), CPU) < 1e-4


def test_the_fastest_mode_is_measured_and_leaves_the_model_alone() -> None:
    model = CASES["cnn"][0]()
    before = [p.clone() for p in model.parameters()]
    assert fastest_mode(model, classification(), images(16), 8, CPU) in MODES
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert fastest_mode(model, classification(), images(16), 8, CPU) in MODES
