"""DP-SGD: one clipped sum in every mode, a record moves it by at most C, noise as claimed."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from dp_fedmed.data.records import Records
from dp_fedmed.learning.networks.dp_sgd import (
    KeyedDPOptimizer,
    poisson_batch,
    private_optimizer,
    train_privately,
)
from dp_fedmed.learning.networks.local_training import LocalTraining
from dp_fedmed.learning.networks.per_sample import PerSampleGradients
from dp_fedmed.learning.networks.task import Task, make_task
from dp_fedmed.models import SmallCNN, UNet
from dp_fedmed.privacy.mechanisms.dp_sgd import DPSGD
from dp_fedmed.privacy.streams.noise import NoiseStream

CPU = torch.device("cpu")
MODES = ["hooks", "functorch"]
C = 0.7


def classification() -> Task:
    return make_task("classification", "cross_entropy")


def segmentation() -> Task:
    return make_task("segmentation", "dice_ce")


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


def plan(**changes: object) -> DPSGD:
    settings: dict[str, object] = {
        "noise_multiplier": 1.0,
        "max_grad_norm": C,
        "sample_rate": 1.0,
        "steps": 1,
        "grad_mode": "hooks",
        "physical_batch_size": 1000,
    }
    return DPSGD(**{**settings, **changes})  # type: ignore[arg-type]


def clipped_sum(case: str, mode: str, x: Tensor, y: Tensor, physical: int = 1000) -> Tensor:
    torch.manual_seed(0)
    model, task = CASES[case][0](), CASES[case][1]()
    gradients = PerSampleGradients(model, task, mode)
    optimizer = KeyedDPOptimizer(
        torch.optim.SGD(gradients.parameters, lr=0.1),
        plan(),
        expected_batch_size=1.0,
    )
    optimizer.start_sum()
    for start in range(0, len(x), physical):
        gradients.add(optimizer, x[start : start + physical], y[start : start + physical])
    return torch.cat([total.flatten() for total in optimizer.totals])


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
def test_every_mode_gives_the_sum_of_clipped_gradients(case: str, mode: str) -> None:
    x, y = tensors(case)
    expected = by_hand(case, x, y)
    assert torch.allclose(clipped_sum(case, mode, x, y).double(), expected, atol=2e-5)
    assert torch.allclose(clipped_sum(case, mode, x, y, physical=2).double(), expected, atol=2e-5)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("scale", [1.0, 1e6, 1e30])
def test_one_record_moves_the_sum_by_at_most_c(mode: str, scale: float) -> None:
    x, y = tensors("cnn")
    x = x.clone()
    x[2] *= scale
    with_it = clipped_sum("cnn", mode, x, y)
    others = [0, 1, 3, 4, 5]
    without = clipped_sum("cnn", mode, x[others], y[others])
    assert float((with_it - without).double().norm()) <= C * (1 + 1e-5)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_record_that_is_not_finite_contributes_nothing(mode: str, bad: float) -> None:
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
    settings: DPSGD,
    records: Records,
    *,
    batch_seed: int = 0,
    noise_seed: int = 0,
    lr: float = 1.0,
) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    model = CASES["cnn"][0]()
    before = copy.deepcopy(model)
    gradients = PerSampleGradients(model, classification(), settings.grad_mode)
    train_privately(
        gradients,
        records,
        config=LocalTraining(lr=lr),
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
def test_an_empty_batch_still_takes_a_step_of_pure_noise(mode: str) -> None:
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
    exact = clipped_sum("cnn", "hooks", x[chosen], y[chosen]).double()
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


def test_a_pass_that_breaks_off_does_not_poison_the_next() -> None:
    x, y = tensors("cnn")
    model = CASES["cnn"][0]()
    for mode in MODES:
        gradients = PerSampleGradients(model, classification(), mode)
        optimizer = private_optimizer(
            torch.optim.SGD(gradients.parameters, lr=0.1), plan(), records=6
        )
        optimizer.start_sum()
        gradients.add(optimizer, x, y)
        expected = [total.clone() for total in optimizer.totals]
        with pytest.raises((IndexError, RuntimeError)):
            gradients.add(optimizer, x, y + 100)  # labels that do not exist
        optimizer.start_sum()
        gradients.add(optimizer, x, y)
        for total, wanted in zip(optimizer.totals, expected, strict=True):
            assert torch.equal(total, wanted)
        gradients.close()


def test_norms_of_many_weights_are_taken_in_float64() -> None:
    """One large value among millions of tiny ones: in float32 the tiny ones are lost."""
    row = torch.full((1, 4_000_000), 2.0e-4)
    row[0, 0] = 1.0
    weight = nn.Parameter(torch.zeros(4_000_000))
    optimizer = KeyedDPOptimizer(
        torch.optim.SGD([weight], lr=0.1),
        plan(),
        expected_batch_size=1.0,
    )
    optimizer.start_sum()
    optimizer.add_clipped([row])
    assert float(np.linalg.norm(optimizer.totals[0].numpy())) <= C * (1 + 1e-9)


def test_the_sum_is_on_the_grid_and_so_is_what_is_released() -> None:
    weight = nn.Parameter(torch.zeros(50))
    optimizer = private_optimizer(torch.optim.SGD([weight], lr=0.1), plan(), records=8)
    optimizer.start_sum()
    optimizer.add_clipped([torch.randn(8, 50)])
    seen: list[np.ndarray] = []

    def noise_for(step: int, exact: list[np.ndarray]) -> NoiseStream:
        seen.extend(exact)
        return NoiseStream.from_public_seed(1)

    optimizer.noisy_step(0, noise_for)
    assert seen[0].dtype == np.int64
    grid = plan().grid
    noise = grid.noise(NoiseStream.from_public_seed(1), 50, std=optimizer.sensitivity)
    wanted = torch.from_numpy(grid.values(seen[0] + noise) / 8.0).float()
    assert weight.grad is not None
    assert torch.equal(weight.grad, wanted)
    assert C < optimizer.sensitivity < C * 1.01


def certain_verdicts(released: Tensor, truth: Tensor, other: Tensor) -> tuple[int, int]:
    """How often somebody who knows the low bits of float32 noise is sure: rightly, and wrongly."""

    def reachable(total: Tensor) -> Tensor:
        near = (released.double() - total.double()).float()
        found = torch.zeros(len(released), dtype=torch.bool)
        for z in (near, near.nextafter(near + 1e30), near.nextafter(near - 1e30)):
            found |= (total + z) == released
        return found

    right = int((reachable(truth) & ~reachable(other)).sum())
    wrong = int((reachable(other) & ~reachable(truth)).sum())
    return right, wrong


def test_the_low_bits_of_a_release_tell_nothing() -> None:
    """float32 noise on a float32 sum tells membership for certain; integers on a grid do not."""
    d = 200_000
    torch.manual_seed(0)
    grid = plan().grid
    others = torch.from_numpy(grid.values(grid.truncated(torch.randn(d).double().numpy()))).float()
    member = others + 1e-3 * torch.randn(d)
    stream = NoiseStream.from_public_seed(3)
    naive = member + torch.from_numpy(stream.normal(d, std=C, dtype=np.float32))
    right, wrong = certain_verdicts(naive, member, others)
    assert right > 1000, "the attack must be able to succeed"
    assert wrong == 0

    weight = nn.Parameter(torch.zeros(d))
    optimizer = private_optimizer(torch.optim.SGD([weight], lr=0.1), plan(), records=1)
    optimizer.start_sum()
    optimizer.totals[0] += member.double()
    optimizer.noisy_step(0, lambda step, exact: stream)
    assert weight.grad is not None
    right, wrong = certain_verdicts(weight.grad, member, others)
    sure = right + wrong
    assert sure == 0 or stats.binomtest(right, sure).pvalue > 1e-4


def test_records_are_cut_into_blocks_by_their_numbers_not_by_who_was_drawn() -> None:
    """Who is absent changes the piece that it would be in, and no other."""
    settings = plan(sample_rate=0.2, physical_batch_size=8)
    block = settings.records_per_block(1)

    def pieces(absent: int | None) -> dict[int, list[int]]:
        chosen: dict[int, list[int]] = {}
        rng = np.random.default_rng(5)
        for part in poisson_batch(200, settings, rng, block=block):
            members = [int(i) for i in part if int(i) != absent]
            chosen.setdefault(int(part[0]) // block, []).extend(members)
        return chosen

    whole = pieces(None)
    member = whole[1][0]
    without = pieces(member)
    assert {b: m for b, m in whole.items() if b != 1} == {
        b: m for b, m in without.items() if b != 1
    }
    assert all(i // block == b for b, members in whole.items() for i in members)
