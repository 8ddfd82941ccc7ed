"""How many processes compute."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
import torch

from dp_fedmed.client_app import build_client_app
from dp_fedmed.config import Config, compose
from dp_fedmed.engines.local_grid import LocalGrid
from dp_fedmed.engines.running import num_workers, with_connected_clients
from dp_fedmed.errors import ConfigError, NodeError


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


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def grid_of(config: Config, clients: int) -> LocalGrid:
    return LocalGrid(build_client_app(config), num_clients=clients, workers=1)


def test_clients_that_are_as_many_as_configured_are_known_by_name(
    small: Callable[..., Config],
) -> None:
    config = small()
    for given in (True, False):
        same, nodes = with_connected_clients(grid_of(config, 4), config, num_clients_given=given)
        assert same is config
        assert sorted(nodes) == [f"client-0000{number}" for number in range(4)]


def test_a_number_that_nobody_gave_is_that_of_the_clients(small: Callable[..., Config]) -> None:
    config = small()
    found, nodes = with_connected_clients(grid_of(config, 3), config, num_clients_given=False)
    assert (len(nodes), found.federation.num_clients) == (3, 3)
    assert config.federation.num_clients == 4, "the given configuration stays as it is"


def test_a_number_that_was_given_is_kept_or_refused(small: Callable[..., Config]) -> None:
    config = small()
    with pytest.raises(NodeError, match=r"3 clients are connected, but .*num_clients=4"):
        with_connected_clients(grid_of(config, 3), config, num_clients_given=True)


def test_one_pool_of_data_is_one_site_whoever_gave_the_number(
    small: Callable[..., Config],
) -> None:
    config = small("federation=centralized")
    _, nodes = with_connected_clients(grid_of(config, 1), config, num_clients_given=False)
    assert len(nodes) == 1
    with pytest.raises(NodeError, match=r"topology=centralized is 1: make the two equal"):
        with_connected_clients(grid_of(config, 2), config, num_clients_given=False)


def test_sizes_are_asked_for_where_noise_depends_on_them(small: Callable[..., Config]) -> None:
    config = small("privacy=sample")
    _, nodes = with_connected_clients(grid_of(config, 4), config, num_clients_given=True)
    assert all(node.records for node in nodes.values())
    config = small("privacy=none", "training.threads=2")
    _, nodes = with_connected_clients(grid_of(config, 4), config, num_clients_given=True)
    assert not any(node.records for node in nodes.values())
    assert torch.get_num_threads() == 2
