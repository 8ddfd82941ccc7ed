"""Who shares masks and secrets with whom: everybody up to 32 clients, a sparse graph beyond.

The graph is that of Bell et al. (Secure Single-Server Aggregation with (Poly)Logarithmic Overhead,
CCS 2020, section 3): a ring of randomly ordered clients, each joined to the k/2 next on both sides.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from math import comb
from typing import Final

from dp_fedmed.errors import NotUnmasked

EVERYBODY: Final = 32  # up to so many clients, each is the neighbour of all
LEAST: Final = 16  # neighbours beyond that, should fewer do: a margin for wrong assumptions
SECURITY_BITS: Final = 40  # a graph that hides less than it should: at most 2⁻⁴⁰
FAILURE_BITS: Final = 30  # an attempt that allowed drop-outs make impossible: at most 2⁻³⁰


@dataclass(frozen=True)
class Degree:
    """How many neighbours each client has, and how many shares rebuild a secret.

    Attributes:
        neighbours: of each client, without itself.
        threshold: of the shares that a client's neighbours and itself hold.
    """

    neighbours: int
    threshold: int


@lru_cache(maxsize=256)
def degree(clients: int, minimum: int, colluding: int) -> Degree:
    """A small degree that is safe, by the three events of Bell et al.'s definition of a good graph.

    The colluding clients, and those that drop out, are sets that do not depend on the graph's
    seed: at most `colluding`, and `clients - minimum`. By exact hypergeometric tails and a union
    bound over all clients,

    1. fewer than t neighbours of anyone collude, except with 2⁻⁴⁰;
    2. the others stay connected, except with 2⁻⁴⁰: a ring falls apart only where two runs of
       k/2 successive clients are gone;
    3. t neighbours of anyone remain, except with 2⁻³⁰.

    Where drop-outs leave a choice, t is a majority that no colluding client can tip: 2t > k + 1 +
    colluding neighbours. Then two halves of the clients that are sent different sets cannot
    give away both secrets of a client.

    >>> degree(10, 7, 2), degree(100, 80, 10)
    (Degree(neighbours=9, threshold=7), Degree(neighbours=30, threshold=12))

    Raises:
        NotUnmasked: for fewer clients than a sum needs.
    """
    dropping = clients - minimum
    if dropping < 0:
        raise NotUnmasked(
            f"{clients} clients take part in secure aggregation, and a sum needs {minimum}"
        )
    if clients > EVERYBODY:
        found = _least_half(clients, dropping, colluding)
        if found is not None:
            return found
    return Degree(clients - 1, min(_majority(clients, colluding), minimum))


def _least_half(clients: int, dropping: int, colluding: int) -> Degree | None:
    """The least sparse degree that is safe, by doubling and halving; None if there is none."""
    last = (clients - 2) // 2
    low, high = LEAST // 2 - 1, LEAST // 2
    while (found := _sparse(clients, dropping, colluding, 2 * high)) is None:
        if high == last:
            return None
        low, high = high, min(2 * high, last)
    while high - low > 1:
        middle = (low + high) // 2
        smaller = _sparse(clients, dropping, colluding, 2 * middle)
        low, high = (middle, high) if smaller is None else (low, middle)
        found = smaller or found
    return found


def _sparse(clients: int, dropping: int, colluding: int, k: int) -> Degree | None:
    gone = dropping + colluding
    if gone >= k:
        two_runs = comb(clients, 2) * comb(clients - k, gone - k)
        if two_runs << SECURITY_BITS > comb(clients, gone):
            return None
    collude = _most(clients, colluding, k, SECURITY_BITS)
    remain = k - _most(clients, dropping, k, FAILURE_BITS)
    threshold = min(remain, _majority(k + 1, collude))
    return Degree(k, threshold) if threshold > max(1, collude) else None


def _majority(holders: int, collude: int) -> int:
    return (holders + collude) // 2 + 1


def _most(clients: int, marked: int, k: int, bits: int) -> int:
    """The most of `marked` clients among the k neighbours of anyone, except with 2^-bits."""
    others = clients - 1
    found, tail = min(marked, k), 0
    ways = comb(marked, found) * comb(others - marked, k - found)  # to have `found` of k marked
    allowed = comb(others, k) >> bits
    while found > 0:
        tail += ways
        if clients * tail > allowed:
            return found
        ways = ways * found * (others - marked - k + found)
        ways //= (marked - found + 1) * (k - found + 1)
        found -= 1
    return 0


class Graph:
    """The neighbours of each client, from a public seed.

    Args:
        names: of the clients that advertised keys.
        seed: public, and not known before the keys are.
        minimum, colluding: as agreed.

    >>> Graph(["ann", "bob", "eve"], seed=b"s", minimum=2, colluding=0).of("bob")
    ('ann', 'eve')
    """

    def __init__(self, names: Iterable[str], seed: bytes, *, minimum: int, colluding: int) -> None:
        self.names = tuple(sorted(names))
        self._degree = degree(len(self.names), minimum, colluding)
        self._ring = sorted(
            self.names, key=lambda name: hmac.digest(seed, name.encode(), hashlib.sha256)
        )
        self._place = {name: place for place, name in enumerate(self._ring)}

    @property
    def threshold(self) -> int:
        """How many shares rebuild a secret."""
        return self._degree.threshold

    def of(self, name: str) -> tuple[str, ...]:
        """The neighbours of a client, in the order of their names."""
        if self._degree.neighbours == len(self.names) - 1:
            return tuple(other for other in self.names if other != name)
        here, reach = self._place[name], self._degree.neighbours // 2
        steps = (step for step in range(-reach, reach + 1) if step)
        return tuple(sorted(self._ring[(here + step) % len(self._ring)] for step in steps))

    def holders(self, name: str) -> tuple[str, ...]:
        """Who holds the shares 1, 2, … of a client's secrets: its neighbours and itself."""
        return tuple(sorted((*self.of(name), name)))
