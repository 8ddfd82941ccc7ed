"""A whole round with real work against a bare PyTorch loop on two processes.

100 users of 50 images, cohort 50, batch 10, one epoch of SGD; the loop does the same arithmetic:
load the global weights, train, subtract, add up. Rounds of both are interleaved.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from bench.rows import Row
from dp_fedmed.assemble import client_runtime
from dp_fedmed.client_app import build_client_app
from dp_fedmed.config import Config, DataConfig, compose
from dp_fedmed.data import DataSet, Records, load_data, partition, split_client
from dp_fedmed.engines.local_grid import LocalGrid
from dp_fedmed.federation import arrays as model_arrays
from dp_fedmed.federation.messages import RoundOrder
from dp_fedmed.federation.nodes import wait_for_nodes
from dp_fedmed.federation.rounds import RoundLedger, RoundSettings
from dp_fedmed.federation.strategy import DPStrategy
from dp_fedmed.models import build_model
from dp_fedmed.planning.plan import make_sampler
from dp_fedmed.privacy.mechanisms import ServerMechanism

USERS, IMAGES, COHORT, ROUNDS = 100, 50, 50, 6
Half = Callable[[Connection, Config, int], None]
MODELS = {"26k": ("[8,16]", 32, 1.3), "1.2M": ("[32,64]", 375, 1.15)}


def load(config: DataConfig, seed: int) -> DataSet:
    """Random images: only the time to train on them matters."""
    rng = np.random.default_rng(seed)

    def records(n: int) -> Records:
        images = rng.integers(0, 256, (n, 1, 28, 28), dtype=np.uint8)
        return Records(images, np.arange(n, dtype=np.int64) % 10)

    return DataSet(
        records(USERS * IMAGES),
        records(20),
        records(20),
        num_classes=10,
        class_names=tuple("0123456789"),
    )


def config_for(channels: str, hidden: int, *more: str) -> Config:
    return compose(
        [
            *("task=digits", "privacy=none", "recipe=none"),
            *("allow_code=[bench]", "data.name=bench.real_round.load"),
            "data.client_val_fraction=0",
            *(f"model.args.channels={channels}", f"model.args.hidden={hidden}"),
            *("training.batch_size=10", "training.momentum=0", "training.lr=0.05"),
            *(f"federation.num_clients={USERS}", f"federation.sample_rate={COHORT / USERS}"),
            *("federation.evaluate_every=0", "federation.client_evaluate_every=0"),
            *("engine.workers=2", *more),
        ]
    )


class BareLoop:
    """Two processes, each training half of a cohort and adding up its half."""

    def __init__(self, config: Config, half_of_a_round: Half) -> None:
        context = multiprocessing.get_context("fork")
        self.ends: list[Connection] = []
        self.processes = []
        for half in range(2):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=half_of_a_round, args=(theirs, config, half), daemon=True
            )
            process.start()
            self.ends.append(ours)
            self.processes.append(process)

    def round(self, weights: list[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        """One round: the new weights."""
        for end in self.ends:
            end.send(weights)
        halves = [end.recv() for end in self.ends]
        return [w + (a + b) / COHORT for w, a, b in zip(weights, *halves, strict=True)]

    def close(self) -> None:
        """Stop both processes."""
        for process in self.processes:
            process.kill()
            process.join()


def users_of(
    data: DataSet, parts: Sequence[Any], half: int
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The records of one half of the cohort, ready for the network."""
    users = []
    for user in range(half, COHORT, 2):
        mine, _ = split_client(parts[user], val_fraction=0.0, seed=0, client=user)
        x = torch.from_numpy(data.train.x[mine]).float().div_(127.5).sub_(1.0)
        users.append((x, torch.from_numpy(data.train.y[mine])))
    return users


def bare_half(end: Connection, config: Config, half: int) -> None:
    torch.set_num_threads(1)
    data = load_data(config.data, seed=config.seed)
    model = build_model(
        config.model, input_shape=data.input_shape, num_classes=10, seed=config.seed
    )
    parameters = list(model.parameters())
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
            optimizer = torch.optim.SGD(parameters, lr=0.05)
            for batch in torch.from_numpy(rng.permutation(len(x))).split(10):
                optimizer.zero_grad()
                F.cross_entropy(model(x[batch]), y[batch]).backward()
                optimizer.step()
            with torch.no_grad():
                for t, p, w in zip(total, parameters, weights, strict=True):
                    t += p - w
        end.send([t.numpy() for t in total])


def compare(
    config: Config,
    bare_half: Half,
    ledger: RoundLedger | None = None,
    mechanism: ServerMechanism | None = None,
) -> tuple[float, float, float]:
    """(our round, the bare round, their ratio): the best of interleaved rounds, in seconds."""
    runtime = client_runtime(config)
    runtime.preload(USERS)
    bare = BareLoop(config, bare_half)
    grid = LocalGrid(build_client_app(runtime=runtime), num_clients=USERS, workers=2)
    times: list[tuple[float, float]] = []
    try:
        found = wait_for_nodes(grid, expected=USERS, timeout=1)
        strategy = DPStrategy(
            RoundSettings(num_rounds=ROUNDS, evaluate_every=0),
            nodes={name: node.node_id for name, node in found.items()},
            sampler=make_sampler(config),
            ledger=ledger,
            mechanism=mechanism,
            order=RoundOrder(
                input_shape=(1, 28, 28),
                num_classes=10,
                run="bench",
                streams="bench",
                phase=0,
                style=str(config.privacy.style),
                noised_by=config.noised_by,
            ),
            seed=0,
        )
        arrays = model_arrays.to_record(runtime.work.state.read())
        weights = [value.astype(np.float32) for value in model_arrays.from_record(arrays).values()]
        for number in range(ROUNDS):
            begun = time.perf_counter()
            result = strategy.start(
                grid,
                arrays,
                num_rounds=number + 1,
                timeout=None,
                after_round=number,
            )
            arrays = result.arrays
            ours = time.perf_counter() - begun
            begun = time.perf_counter()
            weights = [w.astype(np.float32) for w in bare.round(weights)]
            times.append((ours, time.perf_counter() - begun))
    finally:
        grid.close()
        bare.close()
    best_ours, best_bare = (min(column) for column in zip(*times[1:], strict=True))
    return best_ours, best_bare, best_ours / best_bare


def rows() -> list[Row]:
    result = []
    for name, (channels, hidden, target) in MODELS.items():
        ours, bare, quotient = compare(config_for(channels, hidden), bare_half)
        result += [
            Row(f"round at {name} parameters", ours * 1e3, None, "ms"),
            Row(f"bare loop at {name} parameters", bare * 1e3, None, "ms"),
            Row(f"round / bare loop at {name}", quotient, target),
        ]
    return result
