"""Does the audit tell right from wrong? The real build, noise divided by 4, and no clipping.

python -m bench.audit_power record          # 12 audits of each build
python -m bench.audit_power client          # one audit of each build, m = 4000, T = 10
python -m bench.audit_power client_large    # the same with m = 20000, q = 0.2, T = 50
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import numpy as np

from dp_fedmed.config import compose
from dp_fedmed.evidence.audit import Options, audit
from dp_fedmed.federation import client_level
from dp_fedmed.federation.client_level import ClientLevelMechanism
from dp_fedmed.privacy.clipping import clip_l2
from dp_fedmed.tasks.dp_sgd import KeyedDPOptimizer, PerSampleGradients

COMMON = ("recipe=none", "privacy.accountant=pld")
RECORD = (
    *("privacy=sample", "privacy.sample.target_epsilon=null", "privacy.sample.noise_multiplier=4"),
    *("training.batch_size=100000", "training.local_steps=1", "federation.num_rounds=1"),
)
CLIENT = ("privacy=user", "privacy.user.target_epsilon=null", "privacy.user.noise_multiplier=4.5")
SETTINGS: dict[str, tuple[tuple[str, ...], int, int]] = {
    "record": (RECORD, 3000, 12),
    "client": ((*CLIENT, "federation.num_rounds=10"), 4000, 1),
    "client_large": (
        (*CLIENT, "federation.num_rounds=50", "federation.sample_rate=0.2"),
        20_000,
        1,
    ),
}


@contextmanager
def quarter_noise() -> Iterator[None]:
    """Both levels draw a quarter of the noise that they account for."""
    step, release = KeyedDPOptimizer.noisy_step, ClientLevelMechanism.release

    def records(self: KeyedDPOptimizer, *arguments: Any) -> None:
        self.noise_multiplier /= 4.0
        step(self, *arguments)
        self.noise_multiplier *= 4.0

    def clients(self: ClientLevelMechanism, secrets: Any) -> Any:
        self.update_noise /= 4.0
        average = release(self, secrets)
        self.update_noise *= 4.0
        return average

    with (
        patch.object(KeyedDPOptimizer, "noisy_step", records),
        patch.object(ClientLevelMechanism, "release", clients),
    ):
        yield


@contextmanager
def no_clipping() -> Iterator[None]:
    """Neither level bounds anything."""
    add = PerSampleGradients.add

    def records(self: PerSampleGradients, optimizer: KeyedDPOptimizer, *batch: Any) -> Any:
        norm, optimizer.max_grad_norm = optimizer.max_grad_norm, 1e30
        losses = add(self, optimizer, *batch)
        optimizer.max_grad_norm = norm
        return losses

    def clients(arrays: Any, *, max_norm: float) -> Any:
        return clip_l2(arrays, max_norm=1e30)

    with (
        patch.object(PerSampleGradients, "add", records),
        patch.object(client_level, "clip_l2", clients),
    ):
        yield


BUILDS: dict[str, Callable[[], Any]] = {
    "the real build": nullcontext,
    "noise ÷ 4": quarter_noise,
    "no clipping": no_clipping,
}


def main(which: str) -> None:
    """Print one line a build."""
    overrides, count, audits = SETTINGS[which]
    config = compose([*overrides, *COMMON])
    for name, build in BUILDS.items():
        started, bounds, claim = time.perf_counter(), [], 0.0
        for seed in range(audits):
            with build():
                unit = audit(config, Options(count=count, seed=seed)).decisive
            bounds.append(unit.lower_bound or 0.0)
            claim = unit.claim or 0.0
        flagged = sum(bound > claim for bound in bounds)
        print(
            f"{which}, {name}: claim {claim:.2f}, bound {np.mean(bounds):.2f} "
            f"({min(bounds):.2f} to {max(bounds):.2f}), flagged {flagged} of {audits}, "
            f"{(time.perf_counter() - started) / audits:.1f} s an audit",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "record")
