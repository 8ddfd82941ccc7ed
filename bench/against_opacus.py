"""One client on Fashion-MNIST: our accuracy against plain Opacus at the same (ε, δ).

`python -m bench.against_opacus [seeds]` trains the same small CNN both ways, with the same q,
steps, clipping norm and noise multiplier, and prints the test accuracies as Markdown. The images
come from Debian's package `dataset-fashion-mnist`, or from a folder of the four idx files that
DP_FEDMED_FASHION names.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from dp_fedmed.assemble import make_task
from dp_fedmed.config import Config, compose
from dp_fedmed.data import load_data, partition, split_client
from dp_fedmed.launch import run_federation
from dp_fedmed.learning.networks.task import to_input, to_tensors
from dp_fedmed.models import build_model
from dp_fedmed.planning.plan import make_plan, make_sampler

FOLDER = Path(os.environ.get("DP_FEDMED_FASHION", "/usr/share/datasets/fashion-mnist"))
EPSILON, ROUNDS, STEPS, BATCH, LR = 3.0, 4, 50, 1024, 2.0


def config_for(seed: int, run_dir: str) -> Config:
    return compose(
        [
            *(
                "task=fashion_mnist",
                "recipe=none",
                f"data.path={FOLDER}",
                f"seed={seed}",
                f"run_dir={run_dir}",
            ),
            *("privacy=sample", f"privacy.sample.target_epsilon={EPSILON}"),
            *("privacy.sample.target_delta=1e-5", "privacy.sample.grad_mode=hooks"),
            *(
                "model._target_=dp_fedmed.models.SmallCNN",
                "model.args.channels=[8,16]",
                "model.args.hidden=32",
            ),
            *("federation.num_clients=1", f"federation.num_rounds={ROUNDS}"),
            *("federation.server_optimizer=fedavg", "federation.server_lr=1.0"),
            *(f"training.local_steps={STEPS}", f"training.batch_size={BATCH}"),
            *("training.optimizer=sgd", f"training.lr={LR}", "training.momentum=0"),
            *("data.client_val_fraction=0", "federation.evaluate_every=0", "engine.workers=1"),
        ]
    )


def plain_opacus(config: Config) -> float:
    """The same training with Opacus' own optimizer and noise, and no federation."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    torch.set_num_threads(1)
    torch.manual_seed(config.seed)
    data = load_data(config.data, seed=config.seed)
    parts = partition(data, config.data.partition, num_clients=1, seed=config.seed)
    mine, _ = split_client(parts[0], val_fraction=0.0, seed=config.seed, client=0)
    records = data.train.subset(mine)
    plan = make_plan(
        config,
        records={"only": len(records)},
        sampler=make_sampler(config),
        is_private=True,
    ).clients["only"]
    model = build_model(
        config.model, input_shape=data.input_shape, num_classes=10, seed=config.seed
    )
    wrapped = GradSampleModule(model)
    optimizer = DPOptimizer(
        torch.optim.SGD(wrapped.parameters(), lr=LR),
        noise_multiplier=plan.noise_multiplier,
        max_grad_norm=config.privacy.sample.max_grad_norm,
        expected_batch_size=BATCH,
    )
    x, y = to_tensors(records, torch.device("cpu"))
    rng = np.random.default_rng(config.seed)
    wrapped.train()
    for _ in range(ROUNDS * STEPS):
        batch = torch.from_numpy(np.flatnonzero(rng.random(len(x)) < plan.sample_rate))
        optimizer.zero_grad()
        F.cross_entropy(wrapped(to_input(x[batch])), y[batch]).backward()
        optimizer.step()
    task = make_task(config)
    return task.evaluate(model, data.test, torch.device("cpu"))["accuracy"]


def main() -> int:
    if not FOLDER.is_dir():
        print(f"skipped: no Fashion-MNIST in {FOLDER}; apt-get install dataset-fashion-mnist")
        return 0
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    pairs = []
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as folder:
            config = config_for(seed, f"{folder}/run")
            pairs.append((run_federation(config).test["accuracy"], plain_opacus(config)))
        print(f"seed {seed}: dp_fedmed {pairs[-1][0]:.4f}, Opacus {pairs[-1][1]:.4f}", flush=True)
    ours, theirs = np.mean(pairs, axis=0)
    spread = np.std(pairs, axis=0, ddof=1) if seeds > 1 else (0.0, 0.0)
    print(f"| Fashion-MNIST, ε = {EPSILON:g}, {seeds} seeds | accuracy |\n|---|---|")
    print(f"| dp_fedmed, one client | {ours:.4f} ± {spread[0]:.4f} |")
    print(f"| Opacus alone | {theirs:.4f} ± {spread[1]:.4f} |")
    return 0 if abs(ours - theirs) <= 0.01 else 1


if __name__ == "__main__":
    sys.exit(main())
