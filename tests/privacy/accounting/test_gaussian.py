import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_fedmed.privacy import gaussian_delta, gaussian_epsilon, gaussian_sigma


@given(sigma=st.floats(0.05, 200.0), delta=st.floats(1e-12, 1e-2))
def test_epsilon_is_enough_and_barely(sigma, delta):
    epsilon = gaussian_epsilon(noise_multiplier=sigma, delta=delta)
    assert gaussian_delta(noise_multiplier=sigma, epsilon=epsilon) <= delta
    if epsilon > 1e-6:
        less = epsilon * (1 - 1e-6)
        assert gaussian_delta(noise_multiplier=sigma, epsilon=less) > delta


@given(epsilon=st.floats(0.01, 50.0), delta=st.floats(1e-12, 1e-2))
def test_sigma_is_enough_and_barely(epsilon, delta):
    sigma = gaussian_sigma(epsilon=epsilon, delta=delta)
    assert gaussian_delta(noise_multiplier=sigma, epsilon=epsilon) <= delta
    assert gaussian_delta(noise_multiplier=sigma * (1 - 1e-6), epsilon=epsilon) > delta


def test_delta_is_the_hockey_stick_divergence_of_two_normals():
    from scipy import integrate, stats

    sigma, epsilon = 1.3, 0.7
    integral, _ = integrate.quad(
        lambda x: max(
            0.0, stats.norm.pdf(x, 1, sigma) - math.exp(epsilon) * stats.norm.pdf(x, 0, sigma)
        ),
        -20,
        20,
        limit=400,
    )
    ours = gaussian_delta(noise_multiplier=sigma, epsilon=epsilon)
    assert ours == pytest.approx(integral, rel=1e-7)


@pytest.mark.parametrize("sigma", [0.01, 0.3, 50.0, 1e6])
@pytest.mark.parametrize("delta", [1e-12, 1e-5])
def test_extremes_are_finite(sigma, delta):
    assert 0.0 <= gaussian_epsilon(noise_multiplier=sigma, delta=delta) < math.inf
