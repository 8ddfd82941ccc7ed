"""Patches of made-up images, hostile ones among them, and models of them."""

import numpy as np

from dp_fedmed.learning.anomaly.statistics import random_map
from dp_fedmed.privacy.mechanisms.base import gaussian_std
from dp_fedmed.privacy.mechanisms.statistic import BOUND

CHANNELS, DIMENSION = 12, 6


def rng(seed=0):
    return np.random.Generator(np.random.Philox(seed))


def images(n=30, seed=0, patches=16):
    shared = np.linspace(0.5, 2.0, CHANNELS)
    return (shared + 0.4 * rng(seed).standard_normal((n, patches, CHANNELS))).astype(np.float32)


def hostile():
    """Images that try to be more than one image."""
    ordinary = images(1, seed=9)[0]
    single = np.zeros_like(ordinary)
    single[:, 0] = 1e30
    alternating = np.where(np.arange(16)[:, None] % 2 == 0, 1.0, -1.0) * np.ones(CHANNELS)
    broken = ordinary.copy()
    broken[3, 3] = np.nan
    return [
        ordinary,
        1e6 * ordinary,
        -1e6 * ordinary,
        1e-30 * ordinary,
        single,
        alternating.astype(np.float32),
        broken,
        np.full_like(ordinary, np.inf),
        np.zeros_like(ordinary),
    ]


def public_map():
    return random_map(CHANNELS, DIMENSION)


def anchors(count=5):
    return public_map()(images(1, seed=3, patches=count))[0]


def fitted(statistic, data, noise=0.0, seed=0):
    state = statistic.initial_state()
    for _ in range(statistic.num_steps):
        total, count = statistic.total([data], state)
        total = total + noise * rng(seed).standard_normal(len(total))
        state = statistic.update(state, total / count, noise_std=noise / count)
    return state


def release(statistic, clients, *, noise_multiplier, streams):
    """All steps with one noise on the sum over all clients: what a federation does, in one place.

    `clients` are each client's features (n_i, P, channels); each step takes a stream of its own.
    """
    state = statistic.initial_state()
    count = sum(len(features) for features in clients)
    for stream in streams[: statistic.num_steps]:
        total = np.sum([statistic.total([features], state)[0] for features in clients], axis=0)
        std = gaussian_std(noise_multiplier=noise_multiplier, sensitivity=BOUND)
        noise = stream.normal(total.shape, std=std)
        state = statistic.update(state, (total + noise) / count, noise_std=std / count)
    return state
