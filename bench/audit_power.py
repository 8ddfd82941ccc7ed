"""Does the audit tell right from wrong? The real build, and builds that are broken on purpose.

python -m bench.audit_power release         # one release of the default network, 12 audits a build
python -m bench.audit_power anomaly         # the same of anomaly mechanisms
python -m bench.audit_power record          # a whole run, 12 audits of each build
python -m bench.audit_power client          # a whole run, one audit a build, m = 4000, T = 10
python -m bench.audit_power client_large    # the same with m = 20000, q = 0.2, T = 50
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from dp_fedmed.config import compose
from dp_fedmed.data import load_data
from dp_fedmed.evidence.audit import CanaryKind, Finding
from dp_fedmed.evidence.findings import targets
from dp_fedmed.evidence.release_audit import audit_release
from dp_fedmed.evidence.run_audit import audit_run
from dp_fedmed.privacy.mechanisms import client_updates
from dp_fedmed.privacy.mechanisms.clipping import clip_l2
from dp_fedmed.reporting.display import LogDisplay
from tests.evidence import broken

Patch = pytest.MonkeyPatch
Build = Callable[[Patch], None]
COMMON = ("recipe=none", "privacy.accountant=pld")
RECORD = (
    *("privacy=sample", "privacy.sample.target_epsilon=null", "privacy.sample.noise_multiplier=4"),
    *("training.batch_size=100000", "training.local_steps=1", "federation.num_rounds=1"),
)
CLIENT = ("privacy=user", "privacy.user.target_epsilon=null", "privacy.user.noise_multiplier=4.5")
TEXTURES = (
    *("task=textures", "privacy=sample", "anomaly.dimension=8"),
    *("privacy.sample.target_epsilon=null", "privacy.sample.noise_multiplier=2"),
)


@dataclass(frozen=True)
class Setting:
    """What is audited, with how many canaries (none: one release), and how often."""

    overrides: tuple[str, ...]
    builds: dict[str, Build]
    canaries: int | None = None
    audits: int = 12


def real(patch: Patch) -> None:
    """As it is."""


def quarter_noise(patch: Patch) -> None:
    """A quarter of the noise that is accounted for."""
    broken.weaker_noise(patch, lambda drawn: drawn / 4.0)


def no_clipping(patch: Patch) -> None:
    """Neither level bounds anything."""
    broken.unclipped(patch)
    wide = lambda arrays, max_norm: clip_l2(arrays, max_norm=1e30)  # noqa: E731
    patch.setattr(client_updates, "clip_l2", wide)


def network(name: str, mode: str) -> tuple[str, ...]:
    """A network with an error, below the checks that would refuse it."""
    target = f"model._target_=tests.evidence.broken.{name}"
    return ("allow_code=[tests]", target, f"privacy.sample.grad_mode={mode}")


BUILDS: dict[str, Build] = {
    "the real build": real,
    "noise ÷ 4": quarter_noise,
    "no clipping": no_clipping,
}
LESS_NOISE = {name: BUILDS[name] for name in ("the real build", "noise ÷ 4")}
NETWORK = {"its network": broken.without_checks}
SETTINGS: dict[str, dict[str, Setting]] = {
    "release": {
        "MLP": Setting((*RECORD, *COMMON), BUILDS),
        "rows that are not records": Setting(
            (*RECORD, *COMMON, *network("Patches", "hooks")), NETWORK
        ),
        "coupled records": Setting((*RECORD, *COMMON, *network("Centred", "hooks")), NETWORK),
        "masks by place": Setting((*RECORD, *COMMON, *network("Masked", "hooks")), NETWORK),
        "clients": Setting((*CLIENT, *COMMON, "federation.num_rounds=1"), LESS_NOISE),
    },
    "anomaly": {
        "dp_gaussian": Setting(TEXTURES, LESS_NOISE),
        "dp_gaussian, noise at clients": Setting((*TEXTURES, "privacy.noise=client"), LESS_NOISE),
        "dp_prototypes": Setting((*TEXTURES, "anomaly.mechanism=dp_prototypes"), LESS_NOISE),
        "noisy_rows": Setting((*TEXTURES, "anomaly.mechanism=noisy_rows"), LESS_NOISE),
    },
    "record": {"record": Setting((*RECORD, *COMMON), BUILDS, 3000)},
    "client": {"client": Setting((*CLIENT, *COMMON, "federation.num_rounds=10"), BUILDS, 4000, 1)},
    "client_large": {
        "client": Setting(
            (*CLIENT, *COMMON, "federation.num_rounds=50", "federation.sample_rate=0.2"),
            BUILDS,
            20_000,
            1,
        )
    },
}


def audited(setting: Setting, seed: int) -> Finding:
    """One audit."""
    config = compose(list(setting.overrides))
    (target,), rng = targets(config), np.random.default_rng(seed)
    if setting.canaries is None:
        return audit_release(
            config,
            target,
            load_data(config.data, seed=config.seed),
            trials=None,
            confidence=0.95,
            rng=rng,
            on_start=lambda what, total: lambda: None,
        )
    return audit_run(
        config,
        target,
        kind=CanaryKind.white_box,
        count=setting.canaries,
        repeat=1,
        confidence=0.95,
        rng=rng,
        on_start=lambda what, rounds: LogDisplay(),
    )


def main(which: str) -> None:
    """Print one line per build."""
    for what, setting in SETTINGS[which].items():
        for name, build in setting.builds.items():
            started, found = time.process_time(), []
            with Patch.context() as patch:
                build(patch)
                found = [audited(setting, seed) for seed in range(setting.audits)]
            bounds = [each.lower_bound or 0.0 for each in found]
            moved = [float(each.attacked.get("moved", np.nan)) for each in found]
            flagged = sum(each.verdict.is_finding for each in found)
            print(
                f"{what}, {name}: claim {found[0].claim:.2f}, bound {np.mean(bounds):.2f} "
                f"({min(bounds):.2f} to {max(bounds):.2f}), moved {min(moved):.1f} to "
                f"{max(moved):.1f}, flagged {flagged} of {len(found)}, "
                f"{(time.process_time() - started) / len(found):.1f} s of processor an audit",
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "release")
