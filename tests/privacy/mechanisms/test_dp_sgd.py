"""DP-SGD's release without a network: factors, the sensitivity of sums on the grid, and noise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dp_fedmed.privacy.accounting.events import PrivacyEvent
from dp_fedmed.privacy.mechanisms.dp_sgd import DPSGD, MOST_VALUES, Sum, clip_factors
from dp_fedmed.privacy.streams.noise import NoiseStream

C = 0.7
MECHANISM = DPSGD(
    noise_multiplier=2.0,
    max_grad_norm=C,
    sample_rate=0.25,
    steps=3,
    grad_mode="hooks",
    physical_batch_size=16,
)


def test_factors_bound_every_norm_by_c() -> None:
    norms = np.array([0.0, 1e-320, 0.5, C, 0.8, 1e30, 1e308, np.inf, np.nan])
    factors = MECHANISM.bound(norms)
    finite = np.isfinite(norms)
    assert (factors[finite] * norms[finite] <= C * (1 + 1e-15)).all()
    assert factors[~finite].tolist() == [0.0, 0.0]
    assert factors[:4].tolist() == [1.0, 1.0, 1.0, 1.0], "what is short stays as it is"
    assert np.array_equal(factors, clip_factors(norms, C))


def without_noise(mechanism: DPSGD, total: Sum) -> np.ndarray:
    """What is released, minus the noise that is in it."""
    size = sum(part.size for part in total)
    grid, std = mechanism.grid, mechanism.noise_multiplier * mechanism.max_grad_norm
    released = mechanism.release(total, lambda exact: NoiseStream.from_public_seed(1))
    noise = grid.values(grid.noise(NoiseStream.from_public_seed(1), size, std=std))
    return np.concatenate([part.ravel() for part in released]) - noise


def test_one_record_moves_the_released_sum_by_at_most_the_sensitivity() -> None:
    rng = np.random.default_rng(0)
    records = rng.normal(size=(40, 50))
    records *= MECHANISM.bound(np.linalg.norm(records, axis=1))[:, None]
    sensitivity = MECHANISM.sensitivity(weights=50, records=40)
    whole = without_noise(MECHANISM, [records.sum(0)])
    for absent in range(0, 40, 7):
        left = np.delete(records, absent, axis=0).sum(0)
        moved = np.linalg.norm(whole - without_noise(MECHANISM, [left]))
        assert 0.9 * C < moved <= sensitivity
    assert C < sensitivity < 1.01 * C
    assert MECHANISM.sensitivity(weights=10**6, records=40) > sensitivity


def test_a_release_is_the_truncated_sum_with_noise_over_a_constant() -> None:
    total = [np.full((2, 3), 0.123456789), np.zeros(4)]
    seen: list[Sum] = []

    def streams(exact: Sum) -> NoiseStream:
        seen.append(exact)
        return NoiseStream.from_public_seed(5)

    released = MECHANISM.release(total, streams, sensitivity=0.9, denominator=10.0)
    (exact,) = seen
    assert [part.dtype for part in exact] == [np.dtype(np.int64)] * 2
    assert [part.shape for part in released] == [(2, 3), (4,)]
    grid = MECHANISM.grid
    noise = grid.noise(NoiseStream.from_public_seed(5), 10, std=2.0 * 0.9)
    wanted = grid.values(exact[0].ravel() + noise[:6]) / 10.0
    assert np.array_equal(released[0].ravel(), wanted)
    assert np.array_equal(released[1], grid.values(noise[6:]) / 10.0), "zero too is noised"


def test_the_noise_of_a_release_is_sigma_times_the_sensitivity() -> None:
    def noise(**more: float) -> np.ndarray:
        total = [np.zeros(40_000)]
        return MECHANISM.release(total, lambda exact: NoiseStream.from_public_seed(2), **more)[0]

    assert noise().std() == pytest.approx(2.0 * C, rel=0.02)
    assert noise(sensitivity=3.0).std() == pytest.approx(6.0, rel=0.02)
    assert noise(denominator=4.0).std() == pytest.approx(0.5 * C, rel=0.02)


def test_a_round_costs_its_steps() -> None:
    event = PrivacyEvent.poisson(
        unit="record", noise_multiplier=2.0, sample_rate=0.25, count=15, adjacency="zero_out"
    )
    assert list(MECHANISM.cost(5)) == [event]
    (full,) = replace(MECHANISM, sample_rate=1.0).cost(2)
    assert full == PrivacyEvent.full(
        unit="record", noise_multiplier=2.0, count=6, adjacency="zero_out"
    )


@pytest.mark.parametrize(
    "change",
    [
        {"noise_multiplier": 3.0},
        {"max_grad_norm": 0.8},
        {"sample_rate": 0.5},
        {"steps": 4},
        {"grad_mode": "functorch"},
    ],
)
def test_whatever_makes_it_another_release_is_in_the_order(change: dict[str, object]) -> None:
    other = replace(MECHANISM, **change)  # type: ignore[arg-type]
    assert other.order() != MECHANISM.order()
    assert replace(MECHANISM, physical_batch_size=99).order() == MECHANISM.order()


def test_sums_that_do_not_fit_onto_the_grid_are_refused() -> None:
    MECHANISM.require_room(10**6)
    with pytest.raises(ValueError, match=r"\d"):
        MECHANISM.require_room(10**18)


def test_blocks_are_of_records_that_fit_into_memory() -> None:
    full = replace(MECHANISM, sample_rate=1.0)
    assert full.records_per_block(10) == 16
    assert full.records_per_block(MOST_VALUES) == 1
    assert full.records_per_block(10 * MOST_VALUES) == 1
    assert MECHANISM.records_per_block(10) == 48, "a quarter of them is drawn, with some room"
    assert MECHANISM.state() == {}
