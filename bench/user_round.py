"""A user-level round against the same bare two-process loop as a round without privacy.

The workload of `real_round`; each update is clipped besides, the sum is noised, and what is
released is on the disk, as is the charge, before the next round begins.
"""

from __future__ import annotations

import tempfile

from bench.private_round import Paid
from bench.real_round import COHORT, MODELS, USERS, bare_half, compare, config_for
from bench.rows import Row
from dp_fedmed.assemble import server_mechanism
from dp_fedmed.federation.privacy_guard import PrivacyGuard
from dp_fedmed.planning.plan import make_plan, make_sampler
from dp_fedmed.run.phases import limits_of
from dp_fedmed.run.store import RunStore

TARGETS = {"26k": 1.3, "1.2M": 1.15}


def user_round(channels: str, hidden: int) -> tuple[float, float, float]:
    """(our round, the bare round, their ratio), in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        config = config_for(
            *(channels, hidden, "privacy=user", "privacy.user.noise_multiplier=1.0"),
            *("privacy.user.target_epsilon=null", "federation.sampler=fixed"),
            *("privacy.noise_seed=1", f"run_dir={folder}/run"),
        )
        sampler = make_sampler(config)
        records = {f"client-{user:05d}": COHORT for user in range(USERS)}
        plan = make_plan(config, records=records, sampler=sampler, is_private=False)
        store = RunStore.create(config)
        store.begin_phase(plan, "")
        guard = PrivacyGuard(limits_of(config), plan, store.journal)
        mechanism = server_mechanism(config, plan, sampler)
        return compare(config, bare_half, Paid(guard, config, store), mechanism)


def rows() -> list[Row]:
    result = []
    for name, (channels, hidden, _) in MODELS.items():
        ours, bare, quotient = user_round(channels, hidden)
        result += [
            Row(f"user-level round at {name} parameters", ours * 1e3, None, "ms"),
            Row(f"bare loop at {name} parameters", bare * 1e3, None, "ms"),
            Row(f"user-level round / bare loop at {name}", quotient, TARGETS[name]),
        ]
    return result
