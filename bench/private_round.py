"""A federated DP-SGD round against a bare two-process loop over Opacus' optimizer built once.

The same workload as `real_round`: 50 of 100 users, 50 images each, expected batch 10, one epoch.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F

from bench.real_round import USERS, compare, config_for, users_of
from bench.rows import Row
from dp_fedmed.config import Config
from dp_fedmed.config.arithmetic import computed_from
from dp_fedmed.data import load_data, partition
from dp_fedmed.federation import arrays as model_arrays
from dp_fedmed.federation.privacy_guard import PrivacyGuard
from dp_fedmed.models import build_model
from dp_fedmed.planning.plan import make_plan, make_sampler
from dp_fedmed.privacy.streams.noise import NoiseKey
from dp_fedmed.privacy.streams.rounds import RoundStreams, round_digest
from dp_fedmed.run.phases import limits_of
from dp_fedmed.run.store import RunStore

RATE, STEPS = 0.2, 5


def _bare_half(end: Connection, config: Config, half: int) -> None:
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    torch.set_num_threads(1)
    data = load_data(config.data, seed=config.seed)
    model = GradSampleModule(
        build_model(config.model, input_shape=data.input_shape, num_classes=10, seed=config.seed)
    )
    parameters = list(model.parameters())
    optimizer = DPOptimizer(
        torch.optim.SGD(parameters, lr=0.05),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=10,
    )
    parts = partition(data, config.data.partition, num_clients=USERS, seed=config.seed)
    users = users_of(data, parts, half)
    rng = np.random.default_rng(half)
    model.train()
    while True:
        weights = [torch.from_numpy(w) for w in end.recv()]
        total = [torch.zeros_like(w, dtype=torch.float64) for w in weights]
        for x, y in users:
            with torch.no_grad():
                for p, w in zip(parameters, weights, strict=True):
                    p.copy_(w)
            for _ in range(STEPS):
                batch = torch.from_numpy(np.flatnonzero(rng.random(len(x)) < RATE))
                optimizer.zero_grad()
                F.cross_entropy(model(x[batch]), y[batch]).backward()
                optimizer.step()
            with torch.no_grad():
                for t, p, w in zip(total, parameters, weights, strict=True):
                    t += p - w
        end.send([t.numpy() for t in total])


@dataclass
class Paid:
    """A ledger on the disk, and streams of its run."""

    guard: PrivacyGuard
    config: Config
    store: RunStore

    def streams(self, server_round: int, model: model_arrays.State) -> RoundStreams:
        """The server's streams of a round."""
        digest = round_digest(list(model.values()), computed_from(self.config), {})
        return RoundStreams(cast(NoiseKey, self.store.key), "bench", server_round, digest)


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        config = config_for(
            *("[8,16]", 32, "privacy=sample", "privacy.sample.noise_multiplier=1.0"),
            *("privacy.sample.target_epsilon=null", "privacy.sample.grad_mode=hooks"),
            *("privacy.noise_seed=1", f"run_dir={folder}/run", f"training.local_steps={STEPS}"),
        )
        plan = make_plan(
            config,
            records={f"client-{user:05d}": 50 for user in range(USERS)},
            sampler=make_sampler(config),
            is_private=False,
        )
        store = RunStore.create(config)  # with its ledger: a charge waits for the disk
        store.begin_phase(plan, "")
        mode = str(config.privacy.sample.grad_mode)
        guard = PrivacyGuard(limits_of(config), plan, store.journal, grad_mode=mode)
        ours, bare, quotient = compare(config, _bare_half, Paid(guard, config, store))
    return [
        Row("DP-SGD round, 26k parameters, batch 10", ours * 1e3, None, "ms"),
        Row("bare loop over Opacus' optimizer", bare * 1e3, None, "ms"),
        Row("DP-SGD round / bare loop", quotient, 1.3),
    ]
