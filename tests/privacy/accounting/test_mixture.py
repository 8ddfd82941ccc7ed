"""The divergence of a mixture of Gaussians, by numeric integration."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from dp_fedmed.privacy.accounting.mixture import mixture_if_added, mixture_if_removed


@pytest.mark.parametrize(("sigma", "q", "k"), [(0.8, 0.2, 3), (2.0, 0.5, 6)])
def test_a_mixture_diverges_as_numeric_integration_says(sigma: float, q: float, k: int) -> None:
    x = np.linspace(-20.0, 30.0, 400_001)
    present = sum(p * norm.pdf(x, j, sigma) for j, p in enumerate(binom.pmf(range(k + 1), k, q)))
    absent = norm.pdf(x, 0.0, sigma)
    for epsilon in (-0.7, 0.0, 0.5, 3.0):
        weight, at = math.exp(epsilon), np.array([epsilon])
        removed = np.trapezoid(np.maximum(present - weight * absent, 0.0), x)
        added = np.trapezoid(np.maximum(absent - weight * present, 0.0), x)
        assert mixture_if_removed(at, sigma, q, k)[0] == pytest.approx(removed, abs=1e-8)
        assert mixture_if_added(at, sigma, q, k)[0] == pytest.approx(added, abs=1e-8)
