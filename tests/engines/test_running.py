"""How many processes compute."""

from __future__ import annotations

import os

import pytest
import torch

from dp_fedmed.config import compose
from dp_fedmed.engines.running import num_workers
from dp_fedmed.errors import ConfigError


@pytest.mark.parametrize(
    ("words", "workers"),
    [
        (["engine.workers=7"], 7),
        (["federation.num_clients=3"], 3),
        (["federation.num_clients=50"], 8),
        (["federation.num_clients=50", "training.threads=3"], 2),
        (["federation.num_clients=50", "training.threads=16"], 1),
        (["federation.num_clients=50", "federation=centralized"], 1),
    ],
)
def test_one_for_each_core_that_threads_leave_and_never_more_than_sites(
    words: list[str], workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert num_workers(compose(["privacy=none", "training.device=cpu", *words])) == workers


def test_an_accelerator_is_used_by_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = torch.device("cuda")
    monkeypatch.setattr(
        "dp_fedmed.learning.networks.local_training.pick_device", lambda device: cuda
    )
    assert num_workers(compose(["privacy=none"])) == 1
    with pytest.raises(ConfigError, match=r"engine\.workers=2 computes in forked processes"):
        num_workers(compose(["privacy=none", "engine.workers=2"]))
