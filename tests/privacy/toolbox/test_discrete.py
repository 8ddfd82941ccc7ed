"""The discrete Laplace distribution follows its law, at any scale."""

import math

import numpy as np
from scipy import stats

from dp_fedmed.privacy import (
    NoiseStream,
)
from dp_fedmed.privacy.toolbox.discrete import discrete_laplace


def test_discrete_laplace_follows_its_law():
    rng = NoiseStream.from_public_seed(5).generator
    draws = np.array(discrete_laplace(rng, numerator=3, denominator=2, size=20_000))
    decay = math.exp(-2 / 3)
    values = np.arange(-6, 7)
    expected = (1 - decay) / (1 + decay) * decay ** np.abs(values)
    observed = [(draws == v).sum() for v in values]
    rest = len(draws) - sum(observed)
    frequencies = np.append(expected, 1 - expected.sum()) * len(draws)
    assert stats.chisquare([*observed, rest], frequencies).pvalue > 1e-3


def test_discrete_laplace_takes_scales_beyond_64_bits():
    rng = NoiseStream.from_public_seed(6).generator
    scale = 2**100
    draws = [d / scale for d in discrete_laplace(rng, numerator=scale, denominator=1, size=3000)]
    assert stats.kstest(draws, "laplace").pvalue > 1e-3
