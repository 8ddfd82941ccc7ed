"""Zero-concentrated differential privacy: conversions there and back."""

import pytest

from dp_fedmed.privacy import (
    epsilon_to_rho,
    gaussian_rho,
    rho_to_epsilon,
    rho_to_sigma,
)


def test_zcdp_conversions_are_each_others_inverse_and_sound():
    assert gaussian_rho(sigma=3.0, sensitivity=2.0) == pytest.approx(4 / 18)
    assert rho_to_sigma(rho=4 / 18, sensitivity=2.0) == pytest.approx(3.0)
    for epsilon in (0.01, 1.0, 20.0):
        rho = epsilon_to_rho(epsilon=epsilon, delta=1e-6)
        assert rho_to_epsilon(rho=rho, delta=1e-6) == pytest.approx(epsilon, rel=1e-12)
    rho = gaussian_rho(sigma=1.0, sensitivity=1.0)
    assert rho_to_epsilon(rho=rho, delta=1e-5) > 4.3772
