"""PLD: tight, pessimistic, and honest about double precision."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, norm

from dp_fedmed.privacy import History, PrivacyEvent, gaussian_epsilon
from dp_fedmed.privacy.accounting import pld as module
from dp_fedmed.privacy.accounting.pld import mixture_if_added, mixture_if_removed, pld_epsilon


def rdp(segments, delta):
    return History(
        PrivacyEvent.poisson(unit="record", noise_multiplier=s, sample_rate=q, count=t)
        for s, q, t in segments
    ).epsilon(delta=delta)


#: ε extrapolated from grids of 1/20 and 1/40 of the loss's standard deviation per step.
FINE = [
    ([(1.0, 1e-4, 10**6)], 1e-5, 0.45921),
    ([(5.0, 0.01, 10**6)], 1e-5, 10.1242),
    ([(1.0, 1e-4, 1000)], 1e-6, 0.014894),
    ([(0.4, 1e-4, 100)], 1e-7, 4.01532),
    ([(0.3, 0.5, 10000)], 1e-5, 23596.0),
    ([(1.0, 0.5, 10), (1.0, 1e-4, 10**6)], 1e-5, 10.4822),
    ([(0.5, 0.01, 1)], 1e-5, 3.02536),
]


@pytest.mark.parametrize(("segments", "delta", "fine"), FINE)
def test_the_chosen_grid_is_within_a_thousandth(segments, delta, fine):
    epsilon = pld_epsilon(segments, delta=delta)
    assert fine * (1 - 1e-4) <= epsilon <= fine * (1 + 1e-3)


@given(
    sigma=st.floats(0.5, 20.0),
    q=st.floats(1e-3, 0.9),
    steps=st.integers(1, 300),
    delta=st.sampled_from([1e-4, 1e-5, 1e-7]),
)
@settings(max_examples=25)
def test_rdp_is_an_upper_bound_of_pld(sigma, q, steps, delta):
    tight = pld_epsilon([(sigma, q, steps)], delta=delta)
    loose = rdp([(sigma, q, steps)], delta)
    if loose >= 0.1:
        assert tight <= loose


@given(sigma=st.floats(1.0, 20.0), steps=st.integers(1, 200))
@settings(max_examples=15)
def test_the_grid_is_an_upper_bound_of_the_closed_form(sigma, steps):
    """As q approaches 1 the PLD, computed on a grid, approaches the exact value from above."""
    exact = gaussian_epsilon(noise_multiplier=sigma / math.sqrt(steps), delta=1e-5)
    on_grid = module._refined([(sigma, 1.0, steps)], 1e-5, unit=1.0 / sigma, smallest=1e-6 / sigma)
    assert exact * (1 - 1e-7) <= on_grid <= exact * (1 + 1e-3)


def test_full_batch_segments_are_composed_in_closed_form():
    segments = [(2.0, 1.0, 30), (3.0, 1.0, 20)]
    sigma = (30 / 4 + 20 / 9) ** -0.5
    exact = gaussian_epsilon(noise_multiplier=sigma, delta=1e-5)
    assert pld_epsilon(segments, delta=1e-5) == pytest.approx(exact, rel=1e-12)
    mixed = pld_epsilon([*segments, (5.0, 0.01, 10)], delta=1e-5)
    assert exact < mixed < exact * 1.01


def test_a_delta_below_the_precision_of_an_fft_is_not_trusted():
    """The error of an FFT power grows with T and has either sign, so the RDP bound takes over."""
    segments = [(30.0, 0.01, 10**6)]
    assert pld_epsilon(segments, delta=1e-12) == math.inf
    event = PrivacyEvent.poisson(
        unit="record", noise_multiplier=30.0, sample_rate=0.01, count=10**6
    )
    history = History([event])
    assert history.epsilon(delta=1e-12, method="pld") == history.epsilon(delta=1e-12)


def test_a_unit_that_is_hardly_ever_drawn_is_covered_by_delta():
    for q, steps in ((1e-300, 10), (1e-12, 1000), (1e-8, 100)):
        assert pld_epsilon([(1.0, q, steps)], delta=1e-5) == 0.0
    assert pld_epsilon([(0.5, 2e-5, 1)], delta=1e-5) > 0.0
    assert pld_epsilon([(1.0, 1e-12, 1), (2.0, 1.0, 1)], delta=1e-5) > 1.0


def test_a_failure_inside_the_library_falls_back_to_rdp(monkeypatch):
    def fail(*_, **__):
        raise OverflowError("math range error")

    monkeypatch.setattr(module, "_compose", fail)
    event = PrivacyEvent.poisson(
        unit="record", noise_multiplier=1.2345, sample_rate=0.0123, count=77
    )
    history = History([event])
    assert history.epsilon(delta=1e-5, method="pld") == history.epsilon(delta=1e-5)


@pytest.mark.parametrize("sigma", [1e-90, 0.05, 1e8, 1e90])
@pytest.mark.parametrize("q", [1e-300, 0.3, 1 - 2**-53, 1.0])
@pytest.mark.filterwarnings("error")
def test_extreme_noise_is_quiet_and_bounded_by_rdp(sigma, q):
    event = PrivacyEvent.poisson(unit="record", noise_multiplier=sigma, sample_rate=q, count=3)
    history = History([event])
    tight, loose = history.epsilon(delta=1e-5, method="pld"), history.epsilon(delta=1e-5)
    assert 0.0 <= tight <= loose < math.inf


@pytest.mark.parametrize("sigma", [0.15, 0.5, 1.0, 4.0, 100.0])
@pytest.mark.parametrize("q", [1e-6, 0.01, 0.4, 0.999])
def test_divergences_of_one_step_are_those_of_dp_accounting(sigma, q):
    losses = pytest.importorskip("dp_accounting.pld.privacy_loss_mechanism")
    epsilons = np.linspace(-6.0, 12.0, 181)
    for name, ours in (("REMOVE", module.delta_if_removed), ("ADD", module.delta_if_added)):
        theirs = losses.GaussianPrivacyLoss(
            sigma, sampling_prob=q, adjacency_type=losses.AdjacencyType[name]
        ).get_delta_for_epsilon(epsilons)
        np.testing.assert_allclose(ours(epsilons, sigma, q), theirs, atol=3e-14, rtol=1e-9)


@pytest.mark.parametrize(("sigma", "q", "width"), [(1.0, 0.01, 1e-3), (0.5, 0.2, 1e-2)])
def test_one_step_is_the_distribution_that_dp_accounting_makes(sigma, q, width):
    library = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    ours = module._one_step(sigma, q, width=width, cut=-40.0)
    theirs = library.from_gaussian_mechanism(
        sigma,
        sampling_prob=q,
        value_discretization_interval=width,
        log_mass_truncation_bound=-40.0,
    )
    for epsilon in (0.0, 0.1, 1.0, 3.0):
        assert ours.get_delta_for_epsilon(epsilon) == pytest.approx(
            theirs.get_delta_for_epsilon(epsilon), rel=1e-8, abs=1e-13
        )


def test_nothing_recorded_is_zero():
    assert pld_epsilon([], delta=1e-5) == 0.0


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
