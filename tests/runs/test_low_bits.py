"""Low bits of what whole runs release: on the grid, and at chance for who knows the exact sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from scipy import stats

from dp_fedmed.config import Config
from dp_fedmed.launch import run_federation
from dp_fedmed.privacy.mechanisms.private_sum import PrivateSum
from dp_fedmed.privacy.streams.noise import NoiseStream
from tests.privacy.mechanisms.test_low_bits import (
    CHANCE,
    Target,
    by_low_bits,
    by_support,
    float32_noise,
    in_steps,
    verdicts,
)

Make = Callable[..., Config]
ONE_STEP = ("training.batch_size=100000", "training.local_steps=1", "training.momentum=0")
NETWORKS = {
    "sample": ("privacy=sample", "training.local_steps=2"),
    "user": ("privacy=user",),
    "adaptive": ("privacy=user", "privacy.user.clipping=adaptive", "federation.num_clients=40"),
    "hybrid": ("privacy=hybrid", "training.local_steps=1"),
    "sample, server": ("privacy=sample", "privacy.noise=server", *ONE_STEP),
    "hybrid, server": ("privacy=hybrid", "privacy.noise=server", *ONE_STEP),
}
ANOMALIES = {
    name: ("privacy=sample", f"anomaly.mechanism={name}")
    for name in ("dp_gaussian", "dp_prototypes", "noisy_rows")
}


def released(config: Config, monkeypatch: pytest.MonkeyPatch) -> list[Target]:
    """All noised sums of a run, and a release of each without a unit of norm C."""
    found: list[Target] = []
    plain = PrivateSum.release

    def spied(
        self: PrivateSum, total: Sequence[Any], stream: NoiseStream, **more: Any
    ) -> list[Any]:
        result = plain(self, total, stream, **more)
        exact, seen = (np.concatenate([p.ravel() for p in parts]) for parts in (total, result))
        unit = np.random.default_rng(len(found)).normal(size=exact.size)
        less = exact - self.bounded([unit * 9.0 * self.max_norm])[0][0]
        other = plain(self, [less], NoiseStream.from_public_seed(len(found)), **more)[0]
        std, denominator = more.get("std") or self.std, more.get("denominator", 1.0)
        found.append(Target((less, exact), (other, seen), self.grid.step, std, denominator))
        return result

    with monkeypatch.context() as patch:
        patch.setattr(PrivateSum, "release", spied)
        run_federation(config)
    return found


def told(attack: Callable[..., Any], targets: list[Target]) -> tuple[int, int]:
    """How many verdicts are right, and wrong."""
    right, wrong = zip(*(verdicts(attack, target) for target in targets), strict=True)
    return sum(right), sum(wrong)


def check(targets: list[Target]) -> None:
    assert sum(t.sums[0].size for t in targets) > 1000
    for target in targets:
        (_, seen), (_, exact) = target.published, target.sums
        steps = in_steps(seen, target)
        assert np.array_equal(steps * target.step / target.denominator, seen), "on the grid"
        noise = (steps - exact) * (target.step / target.std)
        assert stats.kstest(noise, "norm").pvalue > CHANCE
    for attack in (by_support, by_low_bits):
        right, wrong = told(attack, targets)
        assert right + wrong == 0 or stats.binomtest(right, right + wrong).pvalue > CHANCE
    right, wrong = told(by_support, [float32_noise(target) for target in targets])
    assert stats.binomtest(right, right + wrong).pvalue < CHANCE, "the attack can succeed"
    assert wrong == 0


@pytest.mark.parametrize("style", NETWORKS)
def test_a_networks_run(style: str, small: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    words = (
        *("federation.num_rounds=1", "federation.sampler=all", "privacy.noise_seed=1"),
        *("model._target_=dp_fedmed.models.MLP", "model.args.hidden=[64]"),
    )
    check(released(small(*words, *NETWORKS[style]), monkeypatch))


def test_runs_that_look_for_anomalies(tiny: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = (
        released(tiny("privacy.noise_seed=1", *words), monkeypatch) for words in ANOMALIES.values()
    )
    check([target for run in runs for target in run])
