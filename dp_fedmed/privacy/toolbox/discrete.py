"""Exact sampling of the discrete Laplace distribution, in integer arithmetic.

Textbook Laplace noise in floating point leaks through its low-order bits (Mironov 2012); noise
that is an integer multiple of a fixed step, drawn without rounding, does not.
"""

from __future__ import annotations

import numpy as np


def discrete_laplace(
    rng: np.random.Generator, *, numerator: int, denominator: int, size: int
) -> list[int]:
    """Integers X with P(X = x) ∝ exp(−|x|·denominator/numerator).

    Algorithm 2 of Canonne, Kamath & Steinke 2020, "The discrete Gaussian for differential
    privacy".
    """
    return [_one(rng, numerator, denominator) for _ in range(size)]


def _one(rng: np.random.Generator, t: int, s: int) -> int:
    while True:
        u = _below(rng, t)
        if not _bernoulli_exp(rng, u, t):
            continue
        v = 0
        while _bernoulli_exp(rng, 1, 1):
            v += 1
        y = (u + t * v) // s
        negative = bool(_below(rng, 2))
        if negative and y == 0:
            continue
        return -y if negative else y


def _bernoulli_exp(rng: np.random.Generator, numerator: int, denominator: int) -> bool:
    """True with probability exp(−numerator/denominator), for a ratio of at most 1."""
    k = 1
    while _below(rng, denominator * k) < numerator:
        k += 1
    return k % 2 == 1


def _below(rng: np.random.Generator, bound: int) -> int:
    """Uniform integer in [0, bound), for bounds of any size, by rejection."""
    if bound <= 2**62:
        return int(rng.integers(bound))
    bits = (bound - 1).bit_length()
    while True:
        value = int.from_bytes(rng.bytes((bits + 7) // 8), "little") & ((1 << bits) - 1)
        if value < bound:
            return value
