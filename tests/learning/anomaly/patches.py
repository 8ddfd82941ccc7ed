"""Patches of made-up images, hostile ones among them, and models of them."""

import numpy as np

from dp_fedmed.learning.anomaly.public_map import random_map

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
