"""What secure aggregation costs a client and the server, by length and number of clients."""

from __future__ import annotations

import time

import numpy as np

from bench.rows import Row, best_of
from dp_fedmed.federation.secure_aggregation import SecureClient, SecureServer, Terms, add_up
from dp_fedmed.federation.secure_aggregation.masks import add_mask


def rows() -> list[Row]:
    total = np.zeros(1_000_000, np.uint64)
    mask = best_of(5, lambda: add_mask(total, bytes(32), 1))
    found = [Row("one mask of 1M integers", 1e3 * mask, 10, "ms")]
    for clients in (10, 100):
        for length in (10_000, 1_000_000):
            found += _attempt(clients, length)
    return found


def _attempt(clients: int, length: int) -> list[Row]:
    """One attempt in which a tenth of the clients drop out after sharing."""
    terms = Terms(
        run="bench",
        server_round=1,
        attempt=0,
        length=length,
        minimum=clients * 8 // 10,
        colluding=clients // 10,
    )
    parties = {f"{i:03d}": SecureClient(bytes([i]) * 32, f"{i:03d}", terms) for i in range(clients)}
    server, values = SecureServer(terms), np.arange(length)
    started = time.perf_counter()
    for client in parties.values():
        server.take_keys(client.advertise())
    roster = server.roster()
    for client in parties.values():
        server.take_shares(client.share(roster))
    shared = time.perf_counter()
    deliveries, masking = server.deliveries(), 0.0
    for name in list(parties)[clients // 10 :]:
        before = time.perf_counter()
        masked = parties[name].mask(deliveries[name], values)
        masking += time.perf_counter() - before
        server.add(add_up([masked]))
    request = server.request()
    before = time.perf_counter()
    for name in request.survivors:
        server.take_revealed(parties[name].reveal(request))
    revealed = time.perf_counter()
    if not np.array_equal(server.total(), values * len(request.survivors)):
        raise RuntimeError("secure aggregation gave another sum")
    over = time.perf_counter()
    what = f"{clients} clients, {length:,} integers"
    survivors = len(request.survivors)
    return [
        Row(f"{what}: keys and shares, per client", 1e3 * (shared - started) / clients, None, "ms"),
        Row(f"{what}: masking, per client", 1e3 * masking / survivors, None, "ms"),
        Row(f"{what}: revealing, per client", 1e3 * (revealed - before) / survivors, None, "ms"),
        Row(f"{what}: unmasking, server", 1e3 * (over - revealed), None, "ms"),
    ]
