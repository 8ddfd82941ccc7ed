"""Speed of the accountants and of calibration against their targets.

Each figure is the best of several repetitions, with
caches emptied where the target is about a new (σ, q); imports are not counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from bench.rows import Row
from dp_fedmed.privacy import (
    History,
    NoiseStream,
    PrivacyAccountant,
    PrivacyEvent,
    clip_l2,
    compute_noise_multiplier,
)
from dp_fedmed.privacy.accounting import pld, rdp

Figure = tuple[str, float, float, str]


def best_ms(action: Callable[[int], object], *, repeat: int) -> float:
    """Best wall time of ``action(i)`` in milliseconds."""
    times = []
    for i in range(repeat):
        start = time.perf_counter()
        action(i)
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def record(accountant: PrivacyAccountant, round_num: int, sigma: float) -> None:
    accountant.record_round(
        round_num,
        client="lyon",
        noise_multiplier_sample=sigma,
        sample_rate_sample=0.05,
        steps_sample=10,
        noise_multiplier_user=sigma,
        sample_rate_user=0.2,
        steps_user=1,
    )


def recording() -> list[Figure]:
    """Recording a round, with curves to compute and without."""
    rdp.sampled_gaussian_rdp(noise_multiplier=9.0, sample_rate=0.5)
    accountant = PrivacyAccountant(1e-5)

    def new(i: int) -> None:
        event = PrivacyEvent.poisson(
            unit="record", noise_multiplier=1.0 + 1e-4 * (i + 1), sample_rate=0.05
        )
        accountant.record(event, client="lyon")

    def small(i: int) -> None:
        event = PrivacyEvent.poisson(
            unit="record", noise_multiplier=0.3 + 1e-4 * (i + 1), sample_rate=0.05
        )
        accountant.record(event, client="lyon")

    fresh = PrivacyAccountant(1e-5)
    record(fresh, 0, 1.0)
    return [
        ("record a new (σ, q), σ≈1", best_ms(new, repeat=30), 5.0, "ms"),
        ("record a new (σ, q), σ≈0.3", best_ms(small, repeat=30), 5.0, "ms"),
        (
            "record_round, known (σ, q), both levels",
            best_ms(lambda i: record(fresh, i + 1, 1.0), repeat=300),
            0.05,
            "ms",
        ),
    ]


def reporting() -> list[Figure]:
    """ε of long histories."""
    events = [
        PrivacyEvent.poisson(
            unit="record", noise_multiplier=1.0 + 1e-3 * i, sample_rate=0.01, count=3
        )
        for i in range(1000)
    ]
    long = History(events)
    ten = [(1.0 + 0.1 * i, 0.05, 50) for i in range(10)]

    def pld_ten(i: int) -> float:
        pld._pld_epsilon.cache_clear()
        history = History(
            PrivacyEvent.poisson(unit="record", noise_multiplier=s, sample_rate=q, count=t)
            for s, q, t in ten
        )
        return history.epsilon(delta=1e-5, method="pld")

    pld_ten(0)
    return [
        (
            "RDP ε of 1000 distinct segments",
            best_ms(lambda i: long.epsilon(delta=1e-5 * (1 + i)), repeat=20),
            5.0,
            "ms",
        ),
        ("PLD ε of 10 segments", best_ms(pld_ten, repeat=3), 1500.0, "ms"),
    ]


def calibration() -> list[Figure]:
    """σ for a target."""

    def solve(accountant: str, q: float, epsilon: float, rounds: int) -> float:
        return compute_noise_multiplier(
            target_epsilon=epsilon,
            target_delta=1e-5,
            sample_rate=q,
            steps_per_round=1,
            num_rounds=rounds,
            accountant=accountant,  # type: ignore[arg-type]
        )

    def cold(
        accountant: str, q: float, epsilon: float = 8.0, rounds: int = 1000
    ) -> Callable[[int], float]:
        def run(i: int) -> float:
            rdp._sampled_gaussian_rdp.cache_clear()
            pld._pld_epsilon.cache_clear()
            return solve(accountant, q, epsilon, rounds)

        return run

    return [
        ("calibrate, RDP, q=0.1, ε=8", best_ms(cold("rdp", 0.1), repeat=5), 100.0, "ms"),
        ("calibrate, RDP, q=0.001, ε=1", best_ms(cold("rdp", 0.001, 1.0), repeat=5), 100.0, "ms"),
        ("calibrate, PLD, q=0.1, ε=8", best_ms(cold("pld", 0.1), repeat=3), 2000.0, "ms"),
        ("calibrate, PLD, q=0.001, ε=1", best_ms(cold("pld", 0.001, 1.0), repeat=2), 2000.0, "ms"),
        (
            "calibrate, PLD, q=0.01, ε=3, 10⁴ steps",
            best_ms(cold("pld", 0.01, 3.0, 10**4), repeat=2),
            2000.0,
            "ms",
        ),
        (
            "calibrate, PLD, q=0.001, ε=8, 10⁵ steps",
            best_ms(cold("pld", 0.001, 8.0, 10**5), repeat=1),
            2000.0,
            "ms",
        ),
        ("calibrate, RDP, q=1", best_ms(cold("rdp", 1.0), repeat=20), 2.0, "ms"),
        ("calibrate, PLD, q=1", best_ms(cold("pld", 1.0), repeat=20), 2.0, "ms"),
        ("calibrate, exact, q=1", best_ms(cold("exact", 1.0), repeat=20), 2.0, "ms"),
    ]


def vectors() -> list[Figure]:
    """Noise and clipping of a model of ten million parameters; our own yardsticks."""
    out = np.empty(10_000_000, dtype=np.float32)
    stream = NoiseStream.fresh()
    update = [np.ones(1_000_000, dtype=np.float32) for _ in range(10)]
    return [
        (
            "10M float32 normals, ChaCha20",
            best_ms(lambda i: stream.fill_normal(out), repeat=5),
            400.0,
            "ms",
        ),
        (
            "clip a 10M float32 update",
            best_ms(lambda i: clip_l2(update, max_norm=1.0), repeat=3),
            1000.0,
            "ms",
        ),
    ]


def rows() -> list[Row]:
    figures = [*recording(), *reporting(), *calibration(), *vectors()]
    return [Row(name, measured, target, unit) for name, measured, target, unit in figures]
