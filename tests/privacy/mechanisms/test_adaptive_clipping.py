"""Adaptive clipping: C follows a quantile of norms and costs what is told."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dp_fedmed.errors import ConfigError
from dp_fedmed.privacy.accounting.events import PrivacyEvent
from dp_fedmed.privacy.mechanisms.adaptive_clipping import AdaptiveClientUpdates, split_noise
from dp_fedmed.privacy.mechanisms.base import add
from dp_fedmed.privacy.streams.noise import NoiseKey
from dp_fedmed.privacy.streams.rounds import RoundStreams


def test_split_noise_costs_what_is_accounted() -> None:
    for sigma, cohort in ((0.5, 50.0), (1.0, 100.0), (4.0, 1000.0)):
        count, update = split_noise(sigma, cohort)
        assert update**-2 + (2 * count) ** -2 == pytest.approx(sigma**-2)
        assert update > sigma
    with pytest.raises(ConfigError, match=r"privacy\.user\.clipping=adaptive.*num_clients"):
        split_noise(1.0, 8.0)


def made(cohort: float = 50.0, *, clip: float = 1.0, sigma: float = 1e-3) -> AdaptiveClientUpdates:
    return AdaptiveClientUpdates(
        PrivacyEvent.full(unit="client", noise_multiplier=sigma),
        max_norm=clip,
        expected_cohort=cohort,
        quantile=0.5,
        learning_rate=0.2,
    )


def adapt(norms: list[float], *, clip: float, noise: float = 0.0) -> float:
    mechanism = made(float(len(norms)), clip=clip)
    mechanism.count_noise = noise
    streams = RoundStreams(NoiseKey.generate(), "run", 1, bytes(32))
    total = mechanism.empty({"w": np.zeros(4)})
    for norm in norms:
        add(total, mechanism.bound({"w": np.array([norm, 0, 0, 0])}))
    mechanism.release(total, streams)
    return mechanism.max_norm


def test_adaptive_clipping_follows_the_paper_in_size_and_sign() -> None:
    """Andrew et al. 2021: C ← C·exp(−η(b̄ − γ)), b̄ the share of updates at or below C."""
    assert adapt([0.1] * 50, clip=1.0) == pytest.approx(math.exp(-0.2 * (1.0 - 0.5)))
    assert adapt([9.0] * 50, clip=1.0) == pytest.approx(math.exp(-0.2 * (0.0 - 0.5)))
    assert adapt([0.1] * 25 + [9.0] * 25, clip=1.0) == pytest.approx(1.0)


def test_the_count_of_adaptive_clipping_is_noised() -> None:
    """ln C moves by 0.2 · N(0, 5) / 50 around the step of the exact count."""
    norms = [0.1] * 25 + [9.0] * 25
    moves = np.log([adapt(norms, clip=1.0, noise=5.0) for _ in range(200)])
    assert np.std(moves) == pytest.approx(0.02, rel=0.25)


def test_adaptive_clipping_finds_the_median_norm() -> None:
    rng = np.random.default_rng(0)
    clip = 10.0
    for _ in range(60):
        clip = adapt(list(rng.lognormal(0.0, 0.5, 50)), clip=clip)
    assert clip == pytest.approx(1.0, rel=0.25)


def test_updates_carry_the_noise_that_the_count_leaves_them() -> None:
    """The event's σ is spent by both releases: the updates alone have more noise than it."""
    mechanism = made(100.0, clip=3.0, sigma=2.0)
    count, update = split_noise(2.0, 100.0)
    assert (mechanism.count_noise, mechanism.noise_multiplier) == (count, update)
    assert mechanism.std == pytest.approx(3.0 * update)
    assert mechanism.cost(7) == [mechanism.event.times(7)]
    assert mechanism.event.noise_multiplier == 2.0
    step = mechanism.sums.grid.step
    assert mechanism.order() == {"clip_norm": 3.0, "noise_multiplier": update, "grid": step}
    with pytest.raises(ConfigError, match="larger expected cohort"):
        made(8.0, sigma=1.0)


def test_another_release_from_the_same_state_is_the_same_and_the_next_has_the_next_c() -> None:
    streams = RoundStreams(NoiseKey.from_public_seed(1), "run", 1, bytes(32))
    first, second = made(), made()
    total = first.empty({"w": np.zeros(4)})
    first.release(total, streams)
    assert first.max_norm != 1.0
    second.restore(first.state())
    assert second.state() == first.state() == {"clip_norm": first.max_norm}
    assert np.array_equal(first.release(total, streams)["w"], second.release(total, streams)["w"])
    assert first.state() == second.state()
