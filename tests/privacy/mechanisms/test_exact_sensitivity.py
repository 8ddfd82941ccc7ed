"""Noise off, in exact integers: how far a hostile unit moves what is about to be noised.

For every mechanism and unit. Sums are compared as python integers, bounds as fractions; nothing is
rounded and there is no tolerance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from dp_fedmed.learning.anomaly.dp_gaussian import DPGaussian
from dp_fedmed.learning.anomaly.dp_prototypes import DPPrototypes
from dp_fedmed.learning.anomaly.noisy_rows import drawn_rows
from dp_fedmed.learning.anomaly.statistics import PrivateStatistic
from dp_fedmed.learning.networks.dp_sgd import private_optimizer
from dp_fedmed.privacy.accounting.events import PrivacyEvent
from dp_fedmed.privacy.mechanisms import (
    DPSGD,
    AdaptiveClientUpdates,
    ClientUpdates,
    NoisyRows,
    RecordSums,
    StatisticMean,
)
from dp_fedmed.privacy.mechanisms.base import State, add
from dp_fedmed.privacy.mechanisms.client_updates import BELOW
from dp_fedmed.privacy.streams.noise import NoiseKey, NoiseStream
from dp_fedmed.privacy.streams.rounds import RoundStreams
from tests.learning.anomaly.patches import anchors, hostile, images, public_map

WIDTH = 60
#: One unit's values. C is a norm that no float32 has exactly.
C = 0.7
UNIT = np.full(WIDTH, C / WIDTH**0.5)
HOSTILE: dict[str, NDArray[Any]] = {
    "long": np.full(WIDTH, 1e30, np.float32),
    "one huge value": np.eye(1, WIDTH, 3).ravel() * -1e300,
    "longest": np.full(WIDTH, 1.7e308),
    "half precision": np.full(WIDTH, 6e4, np.float16),
    "at C": UNIT,
    "just above C": UNIT * (1 + 2.0**-50),
    "just below C": UNIT * (1 - 2.0**-50),
    "uneven": C * np.geomspace(1.0, 1e-9, WIDTH) * np.resize([1.0, -1.0], WIDTH),
    "tiny": np.full(WIDTH, 5e-324),
    "zero": np.zeros(WIDTH),
    "a NaN": np.where(np.arange(WIDTH) == 7, np.nan, 1.0),
    "infinite": np.full(WIDTH, np.inf, np.float32),
}
#: What others add moves roundings about, where there are any.
OTHERS = np.random.default_rng(0).normal(0, 0.1, (12, WIDTH))


def squared(steps: Sequence[NDArray[Any]], grid_step: float) -> Fraction:
    """The exact square of a norm."""
    squares = sum(int(step) ** 2 for part in steps for step in part.ravel())
    return squares * Fraction(grid_step) ** 2


def added(mechanism: ClientUpdates, answers: Sequence[dict[str, Any]], names: str = "") -> State:
    total = mechanism.empty(answers[0])
    for answer, client in zip(answers, names or "-" * len(answers), strict=True):
        add(total, mechanism.bound(answer, client=client))
    return total


def as_update(values: NDArray[Any]) -> dict[str, NDArray[Any]]:
    return {"w": values[:50].reshape(5, 10), "b": values[50:]}


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("norm", [C, 1e-6, 1e6])
def test_a_client_moves_the_sum_of_updates_by_at_most_c(kind: str, norm: float) -> None:
    event = PrivacyEvent.full(unit="client", noise_multiplier=1.0)
    mechanism = ClientUpdates(event, max_norm=norm, expected_cohort=9.0)
    others = [as_update(values) for values in OTHERS]
    without, with_it = (
        added(mechanism, world) for world in (others, [*others, as_update(HOSTILE[kind])])
    )
    moved = [with_it[name] - without[name] for name in ("w", "b")]
    assert squared(moved, mechanism.sums.grid.step) <= Fraction(norm) ** 2


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_client_moves_updates_and_count_by_what_their_two_noises_hide(kind: str) -> None:
    """(moved/σ_Δ C)² + (moved count/σ_b)² is at most 1/σ²: both releases cost one event."""
    sigma = 2.0
    event = PrivacyEvent.full(unit="client", noise_multiplier=sigma)
    mechanism = AdaptiveClientUpdates(
        event, max_norm=C, expected_cohort=60.0, quantile=0.5, learning_rate=0.2
    )
    others = [as_update(values) for values in OTHERS]
    without, with_it = (
        added(mechanism, world) for world in (others, [*others, as_update(HOSTILE[kind])])
    )
    moved = [with_it[name] - without[name] for name in ("w", "b")]
    count = int(with_it[BELOW][0] - without[BELOW][0])
    assert count in (-1, 0, 1)
    updates = squared(moved, mechanism.sums.grid.step) / Fraction(mechanism.std) ** 2
    counts = Fraction(count, 2) ** 2 / Fraction(mechanism.count_noise) ** 2
    assert updates + counts <= 1 / Fraction(sigma) ** 2


def statistic_sum(own: StatisticMean, unit: NDArray[Any]) -> NDArray[Any]:
    """A client's answer to a server that noises: the exact sum of its vectors."""
    rows = np.vstack([OTHERS, np.asarray(unit, np.float64)])
    streams = RoundStreams(NoiseKey.from_public_seed(1), "run", 1, bytes(32), client="a")
    return own.release(own.bound(rows).sum(axis=0), streams)


def gradient_sum(own: DPSGD, unit: NDArray[Any]) -> list[NDArray[Any]]:
    """A step's truncated sum of clipped rows, through the optimizer."""
    weights = [nn.Parameter(torch.zeros(5, 10)), nn.Parameter(torch.zeros(10))]
    optimizer = private_optimizer(torch.optim.SGD(weights, lr=0.1), own, records=13)
    optimizer.start_sum()
    with np.errstate(over="ignore"):
        rows = torch.from_numpy(np.vstack([OTHERS, unit]).astype(np.float32))
    for part in (rows[:5], rows[5:]):
        optimizer.add_clipped([part[:, :50].reshape(-1, 5, 10), part[:, 50:]])
    return own.exact_sum([total.numpy() for total in optimizer.totals])


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("client_norm", [None, 0.5, 2.0])
def test_a_record_moves_a_sum_of_vectors_by_the_sensitivity(
    kind: str, client_norm: float | None
) -> None:
    """Also after the server took it up, bounded or not."""
    own = StatisticMean(
        noise_multiplier=1.0, records=13, noised_by="server", client_norm=client_norm
    )
    answers = [statistic_sum(own, unit) for unit in (HOSTILE[kind], np.zeros(WIDTH))]
    allowed = Fraction(own.sensitivity(weights=WIDTH))
    mechanism = RecordSums(
        PrivacyEvent.full(unit="record", noise_multiplier=1.0),
        records={"a": 13, "b": 2},
        sensitivity=float(allowed),
        client_norm=client_norm,
    )
    assert mechanism.sums.grid == own.sums.grid
    taken = [mechanism.bound({"w": answer}, client="a")["w"] for answer in answers]
    for with_it, without in (answers, taken):
        assert squared([with_it - without], own.sums.grid.step) <= allowed**2


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("client_norm", [None, 0.5, 2.0])
def test_a_record_moves_a_sum_of_gradients_by_the_sensitivity(
    kind: str, client_norm: float | None
) -> None:
    own = DPSGD(
        noise_multiplier=1.0, max_grad_norm=C, sample_rate=1.0, steps=1, grad_mode="hooks",
        physical_batch_size=8, noised_by="server", client_norm=client_norm,
    )  # fmt: skip
    with_it, without = (gradient_sum(own, unit) for unit in (HOSTILE[kind], np.zeros(WIDTH)))
    moved = [a - b for a, b in zip(with_it, without, strict=True)]
    allowed = own.sensitivity(weights=WIDTH, records=13)
    assert squared(moved, own.grid.step) <= Fraction(allowed) ** 2
    assert allowed < 1.001 * C


ANSWERS: dict[str, Callable[[int], NDArray[np.int64]]] = {
    "longest integers": lambda top: np.full(WIDTH, np.iinfo(np.int64).max),
    "least integers": lambda top: np.full(WIDTH, np.iinfo(np.int64).min),
    "one of them": lambda top: np.eye(1, WIDTH, 2, dtype=np.int64).ravel() * 2**62,
    "at the bound": lambda top: np.eye(1, WIDTH, 2, dtype=np.int64).ravel() * top,
    "one above": lambda top: np.eye(1, WIDTH, 2, dtype=np.int64).ravel() * (top + 1),
    "one beside it": lambda top: np.array([top, 1] + [0] * (WIDTH - 2)),
    "even": lambda top: np.full(WIDTH, int(top / WIDTH**0.5) + 1),
    "as many as records allow": lambda top: np.full(WIDTH, int(13 * 2**30 / WIDTH**0.5)),
    "zero": lambda top: np.zeros(WIDTH, np.int64),
}


@pytest.mark.parametrize("kind", ANSWERS)
@pytest.mark.parametrize("client_norm", [1.0, 3.3])
def test_a_client_moves_the_sum_of_records_by_at_most_its_bound(
    kind: str, client_norm: float
) -> None:
    """Whatever integers it answers; where clients are not protected, by its number of records."""
    event = PrivacyEvent.full(unit="client", noise_multiplier=1.0)
    for bound in (client_norm, None):
        mechanism = RecordSums(event, records={"a": 13}, noise_multiplier=1.0, client_norm=bound)
        step = mechanism.sums.grid.step
        answer = ANSWERS[kind](int(client_norm / step))
        kept = mechanism.bound({"w": answer}, client="a")["w"]
        assert squared([kept], step) <= Fraction(14 if bound is None else bound) ** 2


STATISTICS: dict[str, Callable[[], PrivateStatistic]] = {
    "gaussian": lambda: DPGaussian(public_map()),
    "gaussian, small radius": lambda: DPGaussian(public_map(), radius=1e-3),
    "prototypes": lambda: DPPrototypes(public_map(), anchors(), num_steps=3),
    "prototypes, small radius": lambda: DPPrototypes(public_map(), anchors(), radius=1e-3),
}


@pytest.mark.parametrize("name", STATISTICS)
def test_an_image_moves_a_statistic_by_at_most_one(name: str) -> None:
    """In every step; zeroed, and at most twice that where it is replaced by another."""
    statistic, data = STATISTICS[name](), images()
    own = StatisticMean(noise_multiplier=1.0, records=len(data))
    state = statistic.initial_state()
    for _ in range(statistic.num_steps):
        exact = own.bound(statistic.vectors(data, state)).sum(axis=0)
        first = own.bound(statistic.vectors(data[:1], state))[0]
        for other in hostile():
            changed = np.concatenate([other[None], data[1:]])
            after = own.bound(statistic.vectors(changed, state)).sum(axis=0)
            assert squared([after - (exact - first)], own.sums.grid.step) <= 1
            assert squared([after - exact], own.sums.grid.step) <= 4
        total, count = statistic.total([data], state)
        state = statistic.update(state, total / count, noise_std=0.0)


@pytest.mark.parametrize("m", [1, 3])
def test_a_replaced_image_moves_its_own_rows_and_those_by_two_root_m(m: int) -> None:
    mechanism = NoisyRows(noise_multiplier=2.0, rows_per_record=m)
    grid = mechanism.sums.grid

    def rows(data: NDArray[Any]) -> NDArray[np.int64]:
        selection = NoiseStream.from_public_seed(3)
        return drawn_rows(mechanism, public_map(), [data], selection=selection)

    data = images()
    before = rows(data)
    for other in hostile():
        after = rows(np.concatenate([data[:4], other[None], data[5:]]))
        assert (before != after).any(axis=1).sum() <= m
        assert squared([after - before], grid.step) <= 4 * m
        assert all(squared([row], grid.step) <= 1 for row in after)
