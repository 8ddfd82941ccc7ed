"""The RDP curve: exact where it can be checked, an upper bound everywhere."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate

from dp_fedmed.privacy import gaussian_epsilon
from dp_fedmed.privacy.accounting import rdp as module
from dp_fedmed.privacy.accounting.rdp import (
    ORDERS,
    rdp_to_epsilon,
    sampled_gaussian_rdp,
    without_replacement_rdp,
)

SIGMAS = st.floats(0.25, 60.0)
RATES = st.floats(1e-7, 0.999)


def at(rdp, order):
    return float(rdp[np.flatnonzero(order == ORDERS)[0]])


def quadrature(sigma, q, order):
    """An independent value, by adaptive integration over both bumps of the integrand."""

    def integrand(z):
        ell = np.logaddexp(math.log1p(-q), math.log(q) + (2 * z - 1) / (2 * sigma**2))
        return math.exp(order * ell - z * z / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi))

    top = order + 12 * sigma
    value, _ = integrate.quad(
        integrand, -12 * sigma, top, points=[0.0, 1.0, order], epsabs=0, epsrel=1e-13, limit=500
    )
    return math.log(value) / (order - 1)


@pytest.mark.parametrize("sigma", [0.3, 0.7, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("q", [0.02, 0.3, 0.9])
@pytest.mark.parametrize("order", [1.1, 1.5, 2.0, 4.3, 8.0, 10.9])
def test_every_kind_of_order_agrees_with_adaptive_integration(sigma, q, order):
    ours = at(sampled_gaussian_rdp(noise_multiplier=sigma, sample_rate=q), order)
    assert ours == pytest.approx(quadrature(sigma, q, order), rel=1e-8, abs=1e-12)


@given(sigma=SIGMAS, q=RATES)
def test_quadrature_and_binomial_sum_are_the_same_function(sigma, q):
    orders = np.array([2.0, 3.0, 5.0, 9.0])
    exact = module._log_excess_integer(sigma, q)[np.isin(module._INTEGERS, orders)]
    by_quadrature = module._log_excess_quadrature(sigma, q, orders)
    np.testing.assert_allclose(np.expm1(by_quadrature - exact), 0.0, atol=1e-11)


@given(sigma=st.floats(0.05, 100.0), q=RATES)
def test_rdp_grows_with_the_order_and_is_convex_times_order_minus_one(sigma, q):
    rdp = sampled_gaussian_rdp(noise_multiplier=sigma, sample_rate=q)
    assert np.all(np.isfinite(rdp))
    assert np.all(rdp > 0)
    assert np.all(np.diff(rdp) >= -1e-9 * rdp[1:])
    if sigma < module._SMALLEST_QUADRATURE_SIGMA:
        return  # chords, cut off by the unsampled curve, are an upper bound but not convex
    log_a = rdp * (ORDERS - 1)
    slopes = np.diff(np.concatenate(([0.0], log_a))) / np.diff(np.concatenate(([1.0], ORDERS)))
    assert np.all(np.diff(slopes) >= -1e-7 * np.abs(slopes[1:]))


@given(sigma=st.floats(0.05, 50.0), q=RATES)
def test_rdp_never_exceeds_the_unsampled_gaussian(sigma, q):
    rdp = sampled_gaussian_rdp(noise_multiplier=sigma, sample_rate=q)
    assert np.all(rdp <= ORDERS / (2 * sigma**2) * (1 + 2e-10))


@pytest.mark.parametrize("q", [1e-9, 1e-6])
@pytest.mark.parametrize("sigma", [1.0, 10.0, 1000.0])
def test_tiny_rates_and_large_noise_keep_their_relative_accuracy(sigma, q):
    """Leading term αq²(e^{1/σ²} − 1)/2, which naive log(A) loses to cancellation."""
    rdp = sampled_gaussian_rdp(noise_multiplier=sigma, sample_rate=q)
    for order in (1.005, 1.5, 2.0):
        expected = order * q**2 * math.expm1(1 / sigma**2) / 2
        assert at(rdp, order) == pytest.approx(expected, rel=1e-4)


def test_popular_shortcut_is_not_an_upper_bound():
    exact = sampled_gaussian_rdp(noise_multiplier=1.0, sample_rate=0.1)
    for order, factor in ((2.0, 1.7), (8.0, 34.0)):
        shortcut = order * 0.1**2 / 2
        assert at(exact, order) / shortcut == pytest.approx(factor, rel=0.02)


def test_small_sigma_falls_back_to_chords_above_the_curve():
    sigma, q = 0.15, 0.01
    fallback = sampled_gaussian_rdp(noise_multiplier=sigma, sample_rate=q)
    fractions = ORDERS[~module._IS_INTEGER]
    exact = np.logaddexp(0, module._log_excess_quadrature(sigma, q, fractions)) / (fractions - 1)
    assert np.all(fallback[~module._IS_INTEGER] >= exact)


@given(sigma=st.floats(0.5, 20.0), q=st.floats(1e-4, 0.9))
def test_fixed_size_cohorts_cost_more_than_poisson_and_no_more_than_half_sigma(sigma, q):
    fixed = without_replacement_rdp(noise_multiplier=sigma, sample_rate=q)
    poisson = sampled_gaussian_rdp(noise_multiplier=sigma / 2, sample_rate=q)
    full = sampled_gaussian_rdp(noise_multiplier=sigma / 2, sample_rate=1.0)
    assert np.all(fixed >= poisson * (1 - 1e-8))
    assert np.all(fixed <= full)


def test_fixed_size_bound_is_no_tighter_than_dp_accounting():
    """Theirs is Theorem 27 of the same paper, a strengthened form of our Theorem 9."""
    rdp_accountant = pytest.importorskip("dp_accounting.rdp.rdp_privacy_accountant")
    orders = [2.0, 3.0, 5.0, 8.0, 16.0, 32.0]
    for sigma, q in ((2.0, 0.01), (4.0, 0.1), (10.0, 0.3)):
        ours = without_replacement_rdp(noise_multiplier=sigma, sample_rate=q)
        theirs = [
            rdp_accountant._compute_rdp_sample_wor_gaussian_scalar(q, sigma / 2, a) for a in orders
        ]
        mine = np.array([at(ours, a) for a in orders])
        assert np.all(mine >= np.array(theirs) * (1 - 1e-9))
        assert mine[0] == pytest.approx(theirs[0], rel=1e-8)


def test_conversion_is_the_tight_one_and_never_negative():
    rdp = sampled_gaussian_rdp(noise_multiplier=1e6, sample_rate=1e-6)
    epsilon, order = rdp_to_epsilon(rdp, delta=0.5)
    assert epsilon == 0.0
    assert order in ORDERS


def test_the_grid_holds_opacus_orders_some_near_one_and_some_up_to_1024():
    opacus = [1 + x / 10 for x in range(1, 100)] + [float(a) for a in range(12, 64)]
    assert set(opacus) <= set(ORDERS.tolist())
    assert ORDERS[0] <= 1.01
    assert ORDERS[-1] == 1024.0
    assert (ORDERS > 64).sum() >= 10


@given(
    sigma=st.floats(0.3, 100.0),
    steps=st.integers(1, 10**5),
    delta=st.sampled_from([1e-3, 1e-5, 1e-9, 1e-12]),
)
def test_epsilon_by_rdp_is_never_below_the_exact_one(sigma, steps, delta):
    rdp = sampled_gaussian_rdp(noise_multiplier=sigma, sample_rate=1.0)
    exact = gaussian_epsilon(noise_multiplier=sigma / math.sqrt(steps), delta=delta)
    assert rdp_to_epsilon(steps * rdp, delta=delta)[0] >= exact


def test_cached_curves_cannot_be_written_to():
    rdp = sampled_gaussian_rdp(noise_multiplier=1.0, sample_rate=0.1)
    with pytest.raises(ValueError, match="read-only"):
        rdp[0] = 0.0
