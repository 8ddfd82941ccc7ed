"""Mechanisms: calibrated as stated, refusing what has no theorem, distributed as claimed."""

import math

import numpy as np
import pytest
from scipy import stats

from dp_fedmed.privacy import (
    ExponentialMechanism,
    GaussianMechanism,
    History,
    LaplaceMechanism,
    NoiseStream,
    RandomizedResponse,
)
from dp_fedmed.privacy.toolbox.mechanisms import _nearest_multiple

GOOD = {"epsilon": 1.0, "delta": 1e-5, "sensitivity": 1.0}


@pytest.mark.parametrize("epsilon", [0.0999, 10.001, 0.0, -1.0, math.nan, "1", True])
def test_gaussian_epsilon_out_of_range_is_refused_with_the_value(epsilon):
    with pytest.raises((TypeError, ValueError), match=r"epsilon must be") as info:
        GaussianMechanism(**{**GOOD, "epsilon": epsilon})
    assert str(epsilon) in str(info.value)


def test_gaussian_range_can_be_waived():
    assert GaussianMechanism(**{**GOOD, "epsilon": 20.0}, allow_any_epsilon=True).sigma < 0.5


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.inf, None])
def test_bad_delta_is_refused(delta):
    with pytest.raises((TypeError, ValueError), match="delta must be"):
        GaussianMechanism(**{**GOOD, "delta": delta})


@pytest.mark.parametrize("sensitivity", [0.0, -1.0, math.nan])
def test_bad_sensitivity_is_refused(sensitivity):
    with pytest.raises(ValueError, match="sensitivity must be"):
        GaussianMechanism(**{**GOOD, "sensitivity": sensitivity})


def test_classic_calibration_is_refused_where_it_is_no_theorem():
    assert GaussianMechanism(**{**GOOD, "epsilon": 0.99}, calibration="classic").sigma > 4.8
    with pytest.raises(ValueError, match="theorem only for epsilon < 1"):
        GaussianMechanism(**GOOD, calibration="classic")
    with pytest.raises(ValueError, match="calibration must be"):
        GaussianMechanism(**GOOD, calibration="exact")


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 4), (0, 3)])
def test_noise_keeps_shape_and_dtype_and_leaves_the_input_alone(dtype, shape):
    data = np.ones(shape, dtype=dtype)
    for mechanism in (GaussianMechanism(**GOOD), LaplaceMechanism(epsilon=1.0)):
        noisy = mechanism.add_noise(data)
        assert np.asarray(noisy).dtype == dtype
        assert np.shape(noisy) == shape
        assert np.all(data == 1)


def test_numbers_and_lists_work():
    mechanism = GaussianMechanism(**GOOD)
    assert isinstance(mechanism.add_noise(3.0), float)
    assert mechanism.add_noise([1, 2, 3]).dtype == np.float64


@pytest.mark.parametrize("data", [np.array([1, 2]), np.array([True]), "x", np.array([1j])])
def test_data_that_is_not_floating_point_is_refused(data):
    with pytest.raises(TypeError, match="floating point"):
        GaussianMechanism(**GOOD).add_noise(data)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_non_finite_data_is_refused(bad):
    for mechanism in (GaussianMechanism(**GOOD), LaplaceMechanism(epsilon=1.0)):
        with pytest.raises(ValueError, match="NaN or infinite"):
            mechanism.add_noise(np.array([1.0, bad]))


@pytest.mark.parametrize("sum_of_four", [False, True])
def test_gaussian_noise_has_the_calibrated_distribution(sum_of_four):
    mechanism = GaussianMechanism(epsilon=2.0, delta=1e-6, sensitivity=3.0)
    noise = mechanism.add_noise(np.zeros(100_000), seed=11, sum_of_four=sum_of_four)
    assert stats.kstest(noise / mechanism.sigma, "norm").pvalue > 1e-3
    chi2 = float((noise**2).sum() / mechanism.sigma**2)
    assert stats.chi2.cdf(chi2, 100_000) == pytest.approx(0.5, abs=0.4995)


def test_seeds_repeat_fresh_noise_does_not_and_only_seeds_taint():
    mechanism = GaussianMechanism(**GOOD)
    zeros = np.zeros(4)
    assert not np.array_equal(mechanism.add_noise(zeros), mechanism.add_noise(zeros))
    assert mechanism.is_private
    assert mechanism.event(unit="record", adjacency="add_remove").is_private
    assert np.array_equal(mechanism.add_noise(zeros, seed=1), mechanism.add_noise(zeros, seed=1))
    assert not mechanism.is_private
    assert not mechanism.event(unit="record", adjacency="add_remove").is_private


def test_a_public_stream_taints_like_a_seed():
    for mechanism in (LaplaceMechanism(epsilon=1.0), RandomizedResponse(epsilon=1.0)):
        call = getattr(mechanism, "add_noise", None) or mechanism.randomize
        call([1.0], stream=NoiseStream.from_public_seed(1))
        assert not mechanism.is_private
    with pytest.raises(ValueError, match="not both"):
        GaussianMechanism(**GOOD).add_noise(1.0, seed=1, stream=NoiseStream.fresh())


@pytest.mark.parametrize("adjacency", ["add_remove", "zero_out", "replace_one"])
def test_a_mechanisms_event_costs_its_epsilon(adjacency):
    mechanism = GaussianMechanism(epsilon=1.5, delta=1e-6, sensitivity=7.0)
    event = mechanism.event(unit="record", adjacency=adjacency)
    epsilon = History([event]).epsilon(delta=1e-6, method="exact")
    assert epsilon == pytest.approx(1.5, rel=1e-6)


def test_laplace_noise_has_its_scale_and_sits_on_a_grid():
    mechanism = LaplaceMechanism(epsilon=0.5, sensitivity=2.0)
    noise = mechanism.add_noise(np.zeros(5000), seed=3)
    assert mechanism.scale == 4.0
    assert stats.kstest(noise / 4.0, "laplace").pvalue > 1e-3
    grid = 2.0 ** (3 - 40)
    assert np.all(noise / grid == np.round(noise / grid))


@pytest.mark.parametrize(
    ("value", "exponent", "expected"),
    [
        (5.0, 0, 5),
        (5.4, 0, 5),
        (5.6, 0, 6),
        (-5.6, 0, -6),
        (1e300, -40, int(1e300) << 40),
        (0.75, -2, 3),
    ],
)
def test_rounding_to_the_grid_is_exact(value, exponent, expected):
    assert _nearest_multiple(value, exponent) == expected


def test_private_count_and_mean_are_unbiased_around_the_clamped_truth():
    ages = [10, 40, 70, 90]
    counts = [
        LaplaceMechanism(epsilon=2.0).private_count(ages, where=lambda a: a > 50, seed=i)
        for i in range(2000)
    ]
    assert np.mean(counts) == pytest.approx(2.0, abs=0.1)
    means = [
        LaplaceMechanism(epsilon=2.0).private_mean(
            [-100.0, 0.5, math.nan, math.inf], lower=0.0, upper=1.0, n=4, seed=i
        )
        for i in range(2000)
    ]
    assert np.mean(means) == pytest.approx((0 + 0.5 + 0 + 1) / 4, abs=0.02)
    assert np.std(means) == pytest.approx(math.sqrt(2) * 0.25 / 2.0, rel=0.1)


def test_laplace_noise_survives_the_ends_of_the_exponent_range():
    for value in (1e300, -1e300, 5e-324):
        noisy = LaplaceMechanism(epsilon=1.0).add_noise(value)
        assert math.isfinite(noisy)
    assert math.isfinite(LaplaceMechanism(epsilon=1.0, sensitivity=1e60).add_noise(1.0))


def test_private_mean_is_not_rounded_before_it_is_noised(monkeypatch):
    """At 2⁵³ a float's step is 2: a mean that is rounded first moves by three times its due."""
    scales = []

    def drawn(rng, *, numerator, denominator, size):
        scales.append(numerator)
        return [noise]

    monkeypatch.setattr("dp_fedmed.privacy.toolbox.mechanisms.discrete_laplace", drawn)
    low = 2.0**53
    one, two = [low, low, low + 2], [low, low + 2, low + 2]
    answers = []
    for data, shifts in ((two, 0), (one, 1)):
        noise = shifts * scales[0] if shifts else 0
        answers.append(
            LaplaceMechanism(epsilon=1.0).private_mean(data, lower=low, upper=low + 2, n=3, seed=1)
        )
    assert answers[0] == answers[1], "a neighbour is the same data with noise of one scale more"


def test_private_mean_needs_a_public_n_and_a_range():
    mechanism = LaplaceMechanism(epsilon=1.0)
    with pytest.raises(ValueError, match="n=3 is public"):
        mechanism.private_mean([1.0, 2.0], lower=0.0, upper=1.0, n=3)
    with pytest.raises(ValueError, match="lower must be below upper"):
        mechanism.private_mean([1.0, 2.0], lower=1.0, upper=1.0, n=2)


def test_randomized_response_has_its_epsilon_and_an_unbiased_estimator():
    mechanism = RandomizedResponse(epsilon=1.0)
    p = mechanism.truth_probability
    assert math.log(p / (1 - p)) == pytest.approx(1.0, abs=1e-12)
    assert math.log(p / (1 - p)) <= 1.0
    assert RandomizedResponse.from_probability(0.75).epsilon == pytest.approx(math.log(3))
    bits = np.arange(100_000) % 10 < 3
    answers = mechanism.randomize(bits, seed=2)
    assert (answers == bits).mean() == pytest.approx(p, abs=0.01)
    assert mechanism.estimate_mean(answers) == pytest.approx(0.3, abs=0.02)
    with pytest.raises(ValueError, match="0/1"):
        mechanism.randomize([0, 2])
    with pytest.raises(ValueError, match=r"\(0.5, 1\)"):
        RandomizedResponse.from_probability(0.5)


@pytest.mark.parametrize("monotonic", [False, True])
def test_exponential_mechanism_keeps_its_ratio_and_its_frequencies(monotonic):
    mechanism = ExponentialMechanism(epsilon=1.0, sensitivity=2.0, monotonic=monotonic)
    utilities = np.array([0.0, 1.0, 3.0])
    neighbour = utilities + (2.0 if monotonic else np.array([2.0, -2.0, 2.0]))
    ratios = mechanism.probabilities(utilities) / mechanism.probabilities(neighbour)
    assert np.abs(np.log(ratios)).max() <= 1.0 + 1e-12
    stream = NoiseStream.from_public_seed(1)
    picks = [mechanism.select(utilities, stream=stream) for _ in range(4000)]
    counts = np.bincount(picks, minlength=3)
    assert stats.chisquare(counts, mechanism.probabilities(utilities) * 4000).pvalue > 1e-3
    with pytest.raises(ValueError, match="at least one option"):
        mechanism.select([])
