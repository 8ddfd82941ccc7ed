"""A private Gaussian: that of the data without noise, positive definite with it."""

import numpy as np
import pytest

from dp_fedmed.learning.anomaly.dp_gaussian import DPGaussian, repaired_inverse
from dp_fedmed.learning.anomaly.statistics import unpacked
from tests.learning.anomaly.patches import (
    DIMENSION,
    fitted,
    images,
    public_map,
    rng,
)


def test_the_gaussian_is_that_of_the_data():
    statistic = DPGaussian(public_map(), radius=10.0)
    data = images(300)
    state = fitted(statistic, data)
    rows = public_map()(data).reshape(-1, DIMENSION).astype(np.float64)
    assert np.allclose(state["mean"], rows.mean(axis=0), atol=1e-6)
    own = rows.reshape(300, 16, DIMENSION).mean(axis=1)
    within = np.cov((rows.reshape(300, 16, DIMENSION) - own[:, None]).reshape(-1, 6).T, bias=True)
    assert np.allclose(state["patch_precision"], np.linalg.inv(within), rtol=1e-3, atol=1e-2)
    between = np.linalg.inv(np.cov(own.T, bias=True))
    assert np.allclose(state["image_precision"], between, rtol=1e-3, atol=1e-1)


def test_repair_makes_every_matrix_positive_definite():
    for seed in range(5):
        noise = rng(seed).standard_normal((8, 8))
        inverse = repaired_inverse(noise + noise.T, noise_std=0.5, floor=0.5)
        assert np.linalg.eigvalsh(inverse).min() > 0


def test_the_floor_is_the_largest_eigenvalue_of_the_noise():
    """The formula τ√(2d) is that of packed noise."""
    d = 60
    noise = unpacked(rng().standard_normal(d * (d + 1) // 2), d)
    assert np.linalg.eigvalsh(noise).max() == pytest.approx(np.sqrt(2 * d), rel=0.15)
