"""Local training: every optimizer, its steps, and its randomness."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from dp_fedmed.assemble import local_training
from dp_fedmed.config import OptimizerName, compose
from dp_fedmed.data.records import Records
from dp_fedmed.learning.networks.local_training import LocalTraining, batches, train_locally
from dp_fedmed.learning.networks.task import Task, make_task
from dp_fedmed.privacy.streams.reproducible import stream

CPU = torch.device("cpu")


def task() -> Task:
    return make_task("classification", "cross_entropy")


def blobs(n: int = 40) -> Records:
    rng = np.random.default_rng(0)
    y = np.arange(n) % 2
    x = rng.normal(size=(n, 4)) + 3.0 * y[:, None]
    return Records(x.astype(np.float32), y.astype(np.int64))


def fit(config: LocalTraining, records: Records | None = None) -> tuple[nn.Module, int]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))
    result = train_locally(
        model,
        blobs() if records is None else records,
        task=task(),
        config=config,
        rng=stream(0, "test"),
        device=CPU,
    )
    return model, result.steps


@pytest.mark.parametrize("optimizer", list(OptimizerName))
def test_every_optimizer_learns_and_differs_from_the_others(optimizer: OptimizerName) -> None:
    config = LocalTraining(
        optimizer=str(optimizer), lr=0.05, batch_size=16, local_epochs=10, weight_decay=0.01
    )
    model, _ = fit(config)
    chosen = task()
    assert chosen.evaluate(model, blobs(), CPU)["accuracy"] > 0.95
    others = [o for o in OptimizerName if o is not optimizer]
    for other in others:
        changed, _ = fit(dataclasses.replace(config, optimizer=str(other)))
        assert not torch.equal(model[0].weight, changed[0].weight)  # type: ignore[index]


def test_steps_are_epochs_times_batches_or_as_given() -> None:
    assert fit(LocalTraining(batch_size=16, local_epochs=2))[1] == 6
    assert fit(LocalTraining(batch_size=16, local_steps=7))[1] == 7
    assert fit(LocalTraining(batch_size=1000))[1] == 1


def test_an_epoch_shows_every_record_once() -> None:
    seen = torch.cat(list(batches(23, LocalTraining(batch_size=5), stream(0, "x"))))
    assert sorted(seen.tolist()) == list(range(23))


def test_a_client_without_records_takes_no_step() -> None:
    nothing = Records(np.zeros((0, 4), np.float32), np.zeros(0, np.int64))
    assert fit(LocalTraining(), nothing)[1] == 0


def test_training_depends_on_its_stream_and_not_on_global_randomness() -> None:
    first, _ = fit(LocalTraining(local_epochs=2))
    second, _ = fit(LocalTraining(local_epochs=2))
    assert torch.equal(first[0].weight, second[0].weight)  # type: ignore[index]


def test_a_client_trains_as_the_configuration_says() -> None:
    words = ["training.optimizer=adamw", "training.lr=0.125", "training.batch_size=5"]
    made = local_training(compose(["privacy=none", *words, "training.local_steps=7"]))
    assert (made.optimizer, made.lr, made.batch_size, made.local_steps) == ("adamw", 0.125, 5, 7)
