"""Whole attempts in one process, with clients that drop out where a test says."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dp_fedmed.federation.secure_aggregation import (
    Delivery,
    MaskedSum,
    SecureClient,
    SecureServer,
    Terms,
    UnmaskRequest,
)


def key_of(name: str) -> bytes:
    return name.encode().ljust(32, b".")


def terms(**changed: object) -> Terms:
    values = {
        "run": "run",
        "server_round": 1,
        "attempt": 0,
        "length": 5,
        "minimum": 3,
        "colluding": 0,
    }
    return Terms(**{**values, **changed})  # type: ignore[arg-type]


@dataclass
class Attempt:
    """An attempt that is led to the stage that a test is about."""

    clients: int
    agreed: Terms
    values: dict[str, NDArray[np.int64]] = field(init=False)

    def __post_init__(self) -> None:
        names = [f"site-{i:03d}" for i in range(self.clients)]
        rng = np.random.default_rng(self.clients)
        bounds = np.iinfo(np.int64)
        self.values = {
            name: rng.integers(bounds.min, bounds.max, self.agreed.length) for name in names
        }
        self.server = SecureServer(self.agreed)
        self.client = {name: SecureClient(key_of(name), name, self.agreed) for name in names}

    @property
    def names(self) -> list[str]:
        return list(self.client)

    def keys(self, without: Collection[str] = ()) -> None:
        for name in self.names:
            if name not in without:
                self.server.take_keys(self.client[name].advertise())

    def shares(self, without: Collection[str] = ()) -> dict[str, Delivery]:
        roster = self.server.roster()
        for name in roster.keys:
            if name not in without:
                self.server.take_shares(self.client[name].share(roster))
        return self.server.deliveries()

    def masked(self, deliveries: dict[str, Delivery], without: Collection[str] = ()) -> None:
        for name, delivery in deliveries.items():
            if name not in without:
                self.server.add(self.client[name].mask(delivery, self.values[name]))

    def revealed(self, request: UnmaskRequest, without: Collection[str] = ()) -> None:
        for name in request.survivors:
            if name not in without:
                self.server.take_revealed(self.client[name].reveal(request))

    def delivered(self) -> dict[str, Delivery]:
        self.keys()
        return self.shares()

    def requested(self, without: Collection[str] = ()) -> UnmaskRequest:
        self.masked(self.delivered(), without)
        return self.server.request()

    def one(self, name: str = "site-000") -> MaskedSum:
        return self.client[name].mask(self.delivered()[name], self.values[name])

    def expected(self, without: Collection[str] = ()) -> NDArray[np.int64]:
        kept = [values for name, values in self.values.items() if name not in without]
        return np.sum(np.stack(kept).view(np.uint64), axis=0, dtype=np.uint64).view(np.int64)
