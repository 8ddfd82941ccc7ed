"""The graph is regular, symmetric and sparse, and its degree keeps the bounds of Bell et al."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest
from scipy.stats import hypergeom

from dp_fedmed.errors import NotUnmasked
from dp_fedmed.federation.secure_aggregation.neighbours import (
    FAILURE_BITS,
    LEAST,
    SECURITY_BITS,
    Graph,
    degree,
)


def graph(clients: int, minimum: int, colluding: int, seed: bytes = b"seed") -> Graph:
    names = [f"site-{i}" for i in range(clients)]
    return Graph(names, seed, minimum=minimum, colluding=colluding)


@pytest.mark.parametrize("clients", [2, 3, 31, 32])
def test_up_to_32_clients_everybody_is_a_neighbour(clients: int) -> None:
    made = graph(clients, 2, 0)
    for name in made.names:
        assert set(made.of(name)) == set(made.names) - {name}
        assert made.holders(name) == made.names


@pytest.mark.parametrize("clients", [33, 100, 1000])
def test_beyond_it_is_regular_symmetric_and_sparse(clients: int) -> None:
    made = graph(clients, clients * 9 // 10, clients // 20)
    k = degree(clients, clients * 9 // 10, clients // 20).neighbours
    assert k < clients - 1
    for name in made.names:
        assert len(set(made.of(name)) - {name}) == k
        assert all(name in made.of(other) for other in made.of(name))


def test_the_degree_grows_like_the_logarithm() -> None:
    degrees = [degree(n, n * 8 // 10, n // 10).neighbours for n in (100, 1_000, 10_000, 100_000)]
    assert degrees == sorted(degrees)
    assert degrees[-1] <= 110, degrees
    assert degree(1000, 1000, 0).neighbours == LEAST


def test_another_seed_is_another_graph() -> None:
    one, two = graph(100, 90, 5, b"one"), graph(100, 90, 5, b"two")
    assert one.of("site-0") != two.of("site-0")
    assert one.of("site-0") == graph(100, 90, 5, b"one").of("site-0")


@pytest.mark.parametrize(
    ("clients", "minimum", "colluding"),
    [(40, 32, 4), (100, 80, 10), (100, 70, 20), (1000, 800, 100), (10_000, 5_000, 0)],
)
def test_the_degree_keeps_the_three_bounds(clients: int, minimum: int, colluding: int) -> None:
    found = degree(clients, minimum, colluding)
    k, t, gone = found.neighbours, found.threshold, clients - minimum
    collude = hypergeom.sf(t - 1, clients - 1, colluding, k)
    assert clients * collude <= 2.0**-SECURITY_BITS
    lost = hypergeom.sf(k - t, clients - 1, gone, k)
    assert clients * lost <= 2.0**-FAILURE_BITS
    away = colluding + gone
    runs = comb(clients - k, away - k) / comb(clients, away) if away >= k else 0.0
    assert comb(clients, 2) * runs <= 2.0**-SECURITY_BITS


def test_survivors_stay_connected() -> None:
    rng = np.random.default_rng(0)
    made = graph(100, 80, 10)
    for _ in range(20):
        left = set(rng.permutation(made.names)[:70].tolist())
        start = min(left)
        seen, todo = {start}, [start]
        while todo:
            new = (set(made.of(todo.pop())) & left) - seen
            seen |= new
            todo += new
        assert seen == left


@pytest.mark.parametrize("clients", range(2, 33))
def test_a_threshold_is_met_by_survivors_and_not_by_colluding_clients(clients: int) -> None:
    for minimum in range(2, clients + 1):
        for colluding in range(minimum - 1):
            threshold = degree(clients, minimum, colluding).threshold
            assert max(1, colluding) < threshold <= minimum


def test_too_few_clients_are_refused() -> None:
    with pytest.raises(NotUnmasked, match="4 clients take part"):
        degree(4, 5, 0)
