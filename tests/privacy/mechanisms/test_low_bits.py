"""The attack on low bits (Mironov 2012): every mechanism's release, as it leaves, tells nothing.

The attacker knows everything but whether one unit is in: two exact sums, the grid, the noise's
scale and the denominator. It looks at which values can occur and at low-order bits. Each attack
must succeed against a build that is broken as it expects, and be at chance against the product's:
two-sided binomial p-value above `CHANCE`. Keys are fixed, so that results are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import nn

from dp_fedmed.learning.anomaly.dp_gaussian import DPGaussian
from dp_fedmed.learning.anomaly.dp_prototypes import DPPrototypes
from dp_fedmed.learning.anomaly.statistics import PrivateStatistic, random_map
from dp_fedmed.learning.networks.dp_sgd import private_optimizer
from dp_fedmed.privacy.accounting.events import PrivacyEvent
from dp_fedmed.privacy.mechanisms import (
    DPSGD,
    MECHANISMS,
    AdaptiveClientUpdates,
    ClientUpdates,
    NoisyRows,
    RecordSums,
    StatisticMean,
)
from dp_fedmed.privacy.mechanisms.base import State, add
from dp_fedmed.privacy.mechanisms.client_updates import BELOW
from dp_fedmed.privacy.mechanisms.private_sum import Ints
from dp_fedmed.privacy.streams.noise import NoiseKey, NoiseStream
from dp_fedmed.privacy.streams.rounds import RoundStreams

CHANCE, CERTAIN = 1e-4, 1e-9
D = 20_000
Floats = NDArray[Any]


@dataclass(frozen=True)
class Target:
    """One kind of release under both hypotheses.

    Attributes:
        sums: exact sums in steps of the grid, without the unit and with it.
        published: what leaves where the one or the other is true.
        step: of the grid.
        std: of the noise in the sum.
        denominator: public.
    """

    sums: tuple[Ints, Ints]
    published: tuple[Floats, Floats]
    step: float
    std: float
    denominator: float = 1.0


def streams(seed: int) -> RoundStreams:
    return RoundStreams(NoiseKey.from_public_seed(seed), "run", 1, bytes(32), client="a")


def updates(count: int, scale: float = 0.01) -> list[dict[str, Floats]]:
    rng = np.random.default_rng(count)
    return [{"w": rng.normal(0, scale, D).astype(np.float32)} for _ in range(count)]


def summed(mechanism: ClientUpdates, answers: dict[str, dict[str, Floats]]) -> State:
    total = mechanism.empty({"w": np.zeros(D)})
    for client, answer in answers.items():
        add(total, mechanism.bound(answer, client=client))
    return total


def of_the_server(
    make: Callable[[], ClientUpdates], answers: dict[str, Any], *, std: float
) -> Target:
    """Client `z` is the unit, unless answers come in pairs: then a record of it is."""
    worlds = (
        (answers["without"], answers["with"])
        if "with" in answers
        else ({n: a for n, a in answers.items() if n != "z"}, answers)
    )
    totals = [summed(make(), world) for world in worlds]
    without, with_it = (make().release(t, streams(h))["w"] for h, t in enumerate(totals))
    mechanism = make()
    return Target(
        (totals[0]["w"], totals[1]["w"]),
        (without, with_it),
        mechanism.sums.grid.step,
        std,
        mechanism.expected_cohort,
    )


def adaptive(rate: float = 0.2) -> AdaptiveClientUpdates:
    return AdaptiveClientUpdates(
        PrivacyEvent.full(unit="client", noise_multiplier=2.0),
        max_norm=1.0,
        expected_cohort=50.0,
        quantile=0.5,
        learning_rate=rate,
    )


def client_updates() -> Target:
    event = PrivacyEvent.full(unit="client", noise_multiplier=2.0)
    make = partial(ClientUpdates, event, max_norm=0.7, expected_cohort=6.5)
    return of_the_server(make, dict(zip("abcdefz", updates(7), strict=True)), std=2.0 * 0.7)


def adaptive_updates() -> Target:
    std = (2.0**-2 - 5.0**-2) ** -0.5  # a count of ±½ with noise of 50/20 takes the rest of σ = 2
    return of_the_server(adaptive, dict(zip("abcdefz", updates(7), strict=True)), std=std)


def adaptive_count() -> Target:
    """The count as the next C tells it; the unit is the one client that is below C."""
    tries = 2500
    mechanism = adaptive(rate=1.0)
    unit = int(0.5 / mechanism.counts.grid.step)
    step, cohort = mechanism.counts.grid.step, mechanism.expected_cohort

    def published(below: int) -> Floats:
        total = {"w": np.zeros(1, np.int64), BELOW: np.array([below])}
        found = np.empty(tries)
        for seed in range(tries):
            mechanism.max_norm = 1.0
            mechanism.release(total, streams(seed))
            share = mechanism.quantile - np.log(mechanism.max_norm)
            found[seed] = np.rint((share - 0.5) * cohort / step) * step / cohort
        return found

    sums = (np.zeros(tries, np.int64), np.full(tries, unit))
    return Target(sums, (published(0), published(1)), step, 50.0 / 20.0, cohort)


def record_sums(*, client_norm: float | None = None, unit: str = "record") -> Target:
    """Sums of three clients, as they bound them; noised by the server."""
    rng = np.random.default_rng(5)
    own = StatisticMean(
        noise_multiplier=2.0, records=4, noised_by="server", client_norm=client_norm
    )
    event = PrivacyEvent.full(unit="record", noise_multiplier=2.0)
    make = partial(
        RecordSums,
        event,
        records=dict.fromkeys("abz", 4),
        sensitivity=own.sensitivity(weights=D),
        noise_multiplier=2.0,
        client_norm=client_norm,
    )
    rows = {client: rng.normal(size=(4, D)) for client in "abz"}
    less = {**rows, "z": np.vstack([rows["z"][:3], np.zeros((1, D))])}
    worlds = {
        name: {c: {"w": own.release(own.bound(v).sum(0), streams(0))} for c, v in world.items()}
        for name, world in {"without": less, "with": rows}.items()
    }
    std = 2.0 * max(own.sensitivity(weights=D), client_norm or 0.0)
    return of_the_server(make, worlds if unit == "record" else worlds["with"], std=std)


def dp_sgd() -> Target:
    """What a step gives the optimizer: a float32 gradient."""
    plan = DPSGD(
        noise_multiplier=2.0, max_grad_norm=0.7, sample_rate=0.3, steps=1, grad_mode="hooks",
        physical_batch_size=16,
    )  # fmt: skip
    rows = torch.from_numpy(np.random.default_rng(6).normal(size=(9, D))).float()
    sums, published = [], []
    for seed, members in enumerate((rows[:8], rows)):
        weight = nn.Parameter(torch.zeros(D))
        optimizer = private_optimizer(torch.optim.SGD([weight], lr=0.1), plan, records=21)
        optimizer.start_sum()
        optimizer.add_clipped([members])
        sums.append(plan.grid.truncated(optimizer.totals[0].numpy()))
        optimizer.noisy_step(0, lambda step, exact, s=seed: NoiseStream.from_public_seed(s))
        published.append(weight.grad.numpy())
    std = plan.noise_multiplier * plan.sensitivity(weights=D, records=21)
    return Target(tuple(sums), tuple(published), plan.grid.step, std, 0.3 * 21)


def statistic(make: Callable[[], PrivateStatistic], step: int) -> Target:
    """The mean of the images' vectors in one step, released again and again."""
    features = np.random.default_rng(7).normal(size=(9, 400, 48)).astype(np.float32)
    vectors = make()
    state = vectors.initial_state()
    for _ in range(step):
        total, count = vectors.total([features], state)
        state = vectors.update(state, total / count, noise_std=0.0)
    mechanism = StatisticMean(noise_multiplier=2.0, records=9)
    rows = mechanism.bound(vectors.vectors(features, state))
    sums = rows[1:].sum(axis=0), rows.sum(axis=0)
    times = -(-D // rows.shape[1])
    without, with_it = (
        np.concatenate([mechanism.release(s, streams(2 * i + h)) for i in range(times)])
        for h, s in enumerate(sums)
    )
    tiled = np.tile(sums[0], times), np.tile(sums[1], times)
    return Target(tiled, (without, with_it), mechanism.sums.grid.step, 2.0, 9.0)


def noisy_rows() -> Target:
    """The unit's row is replaced; the others stay."""
    mechanism = NoisyRows(noise_multiplier=2.0, rows_per_record=2)
    rows = np.random.default_rng(8).normal(size=(4, D)).astype(np.float32)
    worlds = [mechanism.bound(rows[[0, 1, h + 2]]) for h in (0, 1)]
    without, with_it = (mechanism.release(w, streams(h))[2] for h, w in enumerate(worlds))
    sums = worlds[0][2], worlds[1][2]
    return Target(sums, (without, with_it), mechanism.sums.grid.step, 2.0 * 2.0**0.5)


MAP = random_map(48, 40)
ANCHORS = np.random.default_rng(9).normal(size=(12, 40)) / 8.0
TARGETS: dict[str, Callable[[], Target]] = {
    "fixed": client_updates,
    "adaptive": adaptive_updates,
    "adaptive, the count": adaptive_count,
    "record_sums": record_sums,
    "record_sums, a record of a bounded client": partial(record_sums, client_norm=1.5),
    "record_sums, a bounded client": partial(record_sums, client_norm=1.5, unit="client"),
    "dp_sgd": dp_sgd,
    "statistic_mean, dp_gaussian": partial(statistic, lambda: DPGaussian(MAP), 1),
    "statistic_mean, dp_prototypes": partial(statistic, lambda: DPPrototypes(MAP, ANCHORS), 0),
    "noisy_rows": noisy_rows,
}


@cache
def target_of(name: str) -> Target:
    return TARGETS[name]()


def test_every_mechanism_is_attacked() -> None:
    assert {name.partition(",")[0] for name in TARGETS} == MECHANISMS.keys()


def float32_noise(target: Target) -> Target:
    """The build that Mironov's attack is for: float32 noise on a float32 sum."""

    def published(h: int) -> Floats:
        total = (target.sums[h] * target.step).astype(np.float32)
        noise = NoiseStream.from_public_seed(100 + h).normal(
            total.size, std=target.std, dtype=np.float32
        )
        return np.asarray((total + noise) / np.float32(target.denominator))

    return replace(target, published=(published(0), published(1)))


def coarse_noise(target: Target) -> Target:
    """Integers, but of float32 draws: the low bits of the sum stay as they were."""

    def published(h: int) -> Floats:
        draws = NoiseStream.from_public_seed(200 + h).normal(
            target.sums[h].size, std=target.std / target.step, dtype=np.float32
        )
        steps = target.sums[h] + np.rint(draws).astype(np.int64)
        return np.asarray(steps * target.step / target.denominator)

    return replace(target, published=(published(0), published(1)))


def around(values: Floats) -> Iterator[Floats]:
    yield values
    yield np.nextafter(values, np.float32(np.inf))
    yield np.nextafter(values, np.float32(-np.inf))


def reachable(released: Floats, total: Ints, target: Target) -> NDArray[np.bool_]:
    """Whether float32 noise could have taken this float32 sum to what was released."""
    start, seen = (total * target.step).astype(np.float32), released.astype(np.float32)
    found = np.zeros(seen.shape, bool)
    for y in around((seen.astype(np.float64) * target.denominator).astype(np.float32)):
        fits = y / np.float32(target.denominator) == seen
        for z in around((y.astype(np.float64) - start).astype(np.float32)):
            found |= fits & (start + z == y)
    return found


def in_steps(released: Floats, target: Target) -> Ints:
    wide = released.astype(np.float64) * target.denominator / target.step
    return np.rint(wide).astype(np.int64)


def zeros_below(steps: Ints) -> Ints:
    """How many low bits are zero, 15 at most."""
    lowest = (steps & -steps) | np.int64(1 << 15)
    return np.log2(np.minimum(lowest & -lowest, 1 << 15)).astype(np.int64)


def features(released: Floats, target: Target) -> tuple[Ints, ...]:
    """What the attacker looks at, for each value: two bits, and two counts of zero bits."""
    steps = in_steps(released, target)
    return (
        *(reachable(released, total, target).astype(np.int64) for total in target.sums),
        *(zeros_below(steps - total) for total in target.sums),
    )


def by_support(released: Floats, target: Target) -> Ints:
    """1 where only the sum with the unit can have given this value, -1 where only the other."""
    without, with_it, _, _ = features(released, target)
    return with_it - without


def by_low_bits(released: Floats, target: Target) -> Ints:
    """The sum that differs from what was released by the rounder number."""
    _, _, without, with_it = features(released, target)
    return np.sign(with_it - without)


def cells(released: Floats, target: Target) -> Ints:
    """One number for all features of a value."""
    without, with_it, zeros_without, zeros_with = features(released, target)
    return 256 * (without + 2 * with_it) + 16 * zeros_without + zeros_with


def learned(released: Floats, target: Target) -> Ints:
    """What features mean is learned from every second value; of a doubtful cell nothing is said."""
    known = [np.bincount(cells(values, target)[::2], minlength=1024) for values in target.published]
    gap, seen = known[1] - known[0], known[1] + known[0]
    verdict = np.where(np.abs(gap) > 3.0 * np.sqrt(seen), np.sign(gap), 0)[cells(released, target)]
    verdict[::2] = 0
    return np.asarray(verdict)


def verdicts(attack: Callable[[Floats, Target], Ints], target: Target) -> tuple[int, int]:
    """How many were right, and wrong; where sums are the same there is nothing to tell."""
    differ = target.sums[0] != target.sums[1]
    told = [attack(values, target)[differ] for values in target.published]
    right = int((told[0] < 0).sum() + (told[1] > 0).sum())
    return right, int((told[0] > 0).sum() + (told[1] < 0).sum())


ATTACKS = {
    "support": (by_support, float32_noise),
    "low bits": (by_low_bits, coarse_noise),
    "learned": (learned, float32_noise),
    "learned from low bits": (learned, coarse_noise),
}


#: Counts are whole halves: without low bits, coarse noise gives none away.
TRIED = [
    (name, attack)
    for name in TARGETS
    for attack, (_, broken) in ATTACKS.items()
    if not (name.endswith("the count") and broken is coarse_noise)
]


@pytest.mark.parametrize(("name", "attack"), TRIED)
def test_low_bits_tell_nothing_of_a_unit(name: str, attack: str) -> None:
    verdict, broken = ATTACKS[attack]
    target = target_of(name)
    right, wrong = verdicts(verdict, broken(target))
    assert right > wrong, "the attack must be able to succeed"
    assert stats.binomtest(right, right + wrong).pvalue < CERTAIN
    right, wrong = verdicts(verdict, target)
    assert right + wrong == 0 or stats.binomtest(right, right + wrong).pvalue > CHANCE


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_released_is_an_integer_that_either_sum_could_have_given(name: str) -> None:
    """Any integer is a sum plus rounded noise, whatever the sum: there is no other support."""

    def is_on_the_grid(values: Floats, target: Target) -> NDArray[np.bool_]:
        again = in_steps(values, target).astype(np.float64) * target.step / target.denominator
        return np.asarray(again.astype(values.dtype) == values)

    target = target_of(name)
    assert all(is_on_the_grid(values, target).all() for values in target.published)
    assert not all(is_on_the_grid(v, target).all() for v in float32_noise(target).published)
