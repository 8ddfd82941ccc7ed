"""A server's first step: as many clients as there are, or as were asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from dp_fedmed.client_app import build_client_app
from dp_fedmed.config import Config
from dp_fedmed.engines.local_grid import LocalGrid
from dp_fedmed.engines.serving import with_connected_clients
from dp_fedmed.errors import NodeError


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
