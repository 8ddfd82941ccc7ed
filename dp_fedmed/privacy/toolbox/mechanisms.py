"""Mechanisms that turn a number into a private number: Gaussian, Laplace, choices, answers.

Each is responsible for the ε (and δ) it was built with, given the sensitivity its caller states;
clipping, which makes a stated sensitivity true, is a separate verb.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dp_fedmed.privacy import _validate
from dp_fedmed.privacy.accounting.events import Adjacency, PrivacyEvent, Unit
from dp_fedmed.privacy.accounting.gaussian import gaussian_sigma
from dp_fedmed.privacy.streams.noise import NoiseStream
from dp_fedmed.privacy.toolbox.discrete import discrete_laplace

Calibration = Literal["analytic", "classic"]

#: Noise lives on a grid this many binary digits below its own scale.
_GRID_BITS: Final = 40


class _Randomized:
    """Where the randomness of one call comes from, and whether it stayed secret."""

    def __init__(self) -> None:
        self._is_private = True

    @property
    def is_private(self) -> bool:
        """False once a public seed was used: outputs drawn from it protect nobody."""
        return self._is_private

    def _stream(self, seed: int | None, stream: NoiseStream | None) -> NoiseStream:
        if seed is not None and stream is not None:
            raise ValueError("give a seed (public, for tests) or a stream, not both")
        if seed is not None:
            stream = NoiseStream.from_public_seed(seed)
        elif stream is None:
            stream = NoiseStream.fresh()
        self._is_private = self._is_private and stream.is_private
        return stream


class GaussianMechanism(_Randomized):
    """Adds normal noise for one (ε, δ)-DP release of a vector of bounded L2 sensitivity.

    Args:
        epsilon: ε in [0.1, 10], unless ``allow_any_epsilon``.
        delta: δ in (0, 1).
        sensitivity: L2 distance that one unit can move the data, in the same unit as the data.
        calibration: ``analytic`` is exact (Balle & Wang 2018). ``classic`` is
            Δ√(2 ln(1.25/δ))/ε (Dwork & Roth 2014), a theorem only for ε < 1.
        allow_invalid: Accept ``classic`` for ε ≥ 1, for comparison with the literature.
        allow_any_epsilon: Accept any ε > 0.

    Example:
        >>> mechanism = GaussianMechanism(epsilon=1.0, delta=1e-5, sensitivity=1.0)
        >>> round(mechanism.sigma, 3)
        3.731
        >>> mechanism.add_noise(np.zeros((2, 3), dtype=np.float32)).dtype
        dtype('float32')
    """

    def __init__(
        self,
        *,
        epsilon: float,
        delta: float,
        sensitivity: float,
        calibration: Calibration = "analytic",
        allow_invalid: bool = False,
        allow_any_epsilon: bool = False,
    ) -> None:
        super().__init__()
        self.epsilon = _validate.positive("epsilon", epsilon)
        if not 0.1 <= self.epsilon <= 10.0 and not allow_any_epsilon:
            raise ValueError(
                f"epsilon must be in [0.1, 10], got {self.epsilon!r}: below it drowns the data,"
                " above it promises little; pass allow_any_epsilon=True if you mean it"
            )
        self.delta = _validate.delta("delta", delta)
        self.sensitivity = _validate.positive("sensitivity", sensitivity)
        self.calibration = _validate.choice("calibration", calibration, ("analytic", "classic"))
        if calibration == "analytic":
            ratio = gaussian_sigma(epsilon=self.epsilon, delta=self.delta)
        else:
            if self.epsilon >= 1.0 and not allow_invalid:
                raise ValueError(
                    "calibration='classic' is a theorem only for epsilon < 1, got"
                    f" {self.epsilon!r}; use 'analytic', or allow_invalid=True to compare with the"
                    " literature"
                )
            ratio = math.sqrt(2.0 * math.log(1.25 / self.delta)) / self.epsilon
        self._sigma = self.sensitivity * ratio

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise, in the unit of the data."""
        return self._sigma

    def event(self, *, unit: Unit, adjacency: Adjacency, count: int = 1) -> PrivacyEvent:
        """What ``count`` releases spend, when ``sensitivity`` was stated for ``adjacency``."""
        # Events measure σ against C; under replace-one the stated sensitivity is already 2C.
        moves = 2.0 if adjacency == "replace_one" else 1.0
        return PrivacyEvent.unsampled(
            unit=unit,
            adjacency=adjacency,
            noise_multiplier=moves * self._sigma / self.sensitivity,
            count=count,
            is_private=self.is_private,
        )

    def add_noise(
        self,
        data: ArrayLike,
        seed: int | None = None,
        *,
        stream: NoiseStream | None = None,
        sum_of_four: bool = False,
    ) -> Any:
        """Noisy copy of ``data``, with its shape and dtype.

        Args:
            data: Float array, list or number; must be finite.
            seed: A public seed, for tests: the result is not private.
            stream: Secret randomness of a run; a fresh one of the OS by default.
            sum_of_four: Harden against floating-point attacks (see ``NoiseStream.normal``).
        """
        values = _finite_floats(data)
        noise = self._stream(seed, stream).normal(
            values.shape, std=self._sigma, method="sum_of_four" if sum_of_four else "ziggurat"
        )
        # Added in float64: rounding to the data's dtype is then post-processing of the sum.
        noisy = (values.astype(np.float64) + noise).astype(values.dtype)
        return float(noisy) if isinstance(data, float | int) else noisy


class LaplaceMechanism(_Randomized):
    """Adds discrete Laplace noise on a fine grid, for pure ε-DP.

    Data and noise are integer multiples of a power of two 2⁴⁰ times finer than the noise, and the
    noise is drawn exactly: textbook Laplace noise leaks through its low-order bits (Mironov 2012).
    It is meant for statistics, not for models: a draw costs some 30 µs.

    Args:
        epsilon: ε > 0.
        sensitivity: L1 distance that one unit can move the data (1 for a count).

    Example:
        >>> mechanism = LaplaceMechanism(epsilon=1.0)
        >>> isinstance(mechanism.private_count([3, 8, 5], where=lambda age: age > 4), int)
        True
        >>> mean = LaplaceMechanism(epsilon=1.0).private_mean(
        ...     [0.2, 0.4], lower=0.0, upper=1.0, n=2, seed=1)
    """

    def __init__(self, *, epsilon: float, sensitivity: float = 1.0) -> None:
        super().__init__()
        self.epsilon = _validate.positive("epsilon", epsilon)
        self.sensitivity = _validate.positive("sensitivity", sensitivity)

    @property
    def scale(self) -> float:
        """Δ/ε, called b; the noise's standard deviation is √2·b."""
        return self.sensitivity / self.epsilon

    def add_noise(
        self, data: ArrayLike, seed: int | None = None, *, stream: NoiseStream | None = None
    ) -> Any:
        """Noisy copy of ``data``, with its shape and dtype."""
        values = _finite_floats(data)
        noisy = self._noisy(values, self.sensitivity, self._stream(seed, stream))
        return float(noisy) if isinstance(data, float | int) else noisy

    def _noisy(self, values: NDArray[Any], sensitivity: float, stream: NoiseStream) -> NDArray[Any]:
        exponent = math.frexp(sensitivity / self.epsilon)[1] - _GRID_BITS
        grid = math.ldexp(1.0, exponent)
        # Rounding to the grid moves each coordinate by up to half a step on either data set.
        widened = sensitivity + grid * values.size
        steps = math.ceil(widened / self.epsilon / grid * (1.0 + 1e-12))
        noise = discrete_laplace(stream.generator, numerator=steps, denominator=1, size=values.size)
        flat = values.astype(np.float64).reshape(-1)
        result = [
            _times_power_of_two(_nearest_multiple(float(v), exponent) + k, exponent)
            for v, k in zip(flat, noise, strict=True)
        ]
        return np.array(result, dtype=values.dtype).reshape(values.shape)

    def private_count(
        self,
        data: Sequence[Any] | NDArray[Any],
        *,
        where: Callable[[Any], bool] | None = None,
        seed: int | None = None,
        stream: NoiseStream | None = None,
    ) -> int:
        """How many items satisfy ``where``, plus integer noise; sensitivity 1, add/remove.

        The result may be negative; clamping it at 0 is post-processing and is yours to do.
        """
        count = len(data) if where is None else sum(bool(where(item)) for item in data)
        scale = math.ceil(2**20 / self.epsilon)
        noise = discrete_laplace(
            self._stream(seed, stream).generator, numerator=scale, denominator=2**20, size=1
        )
        return count + noise[0]

    def private_mean(
        self,
        data: ArrayLike,
        *,
        lower: float,
        upper: float,
        n: int,
        seed: int | None = None,
        stream: NoiseStream | None = None,
    ) -> float:
        """Mean of values clamped to a public range; replace-one sensitivity (upper − lower)/n.

        Args:
            data: ``n`` numbers; NaN counts as ``lower``.
            lower: Public lower end; taken from the data it would be a release of its own.
            upper: Public upper end.
            n: Public number of values.
            seed: A public seed, for tests.
            stream: Secret randomness of a run.
        """
        low, high = _validate.real("lower", lower), _validate.real("upper", upper)
        if not low < high:
            raise ValueError(f"lower must be below upper, got lower={low!r}, upper={high!r}")
        span = _validate.positive("upper − lower", high - low)
        values = np.asarray(data, dtype=np.float64).reshape(-1)
        if len(values) != _validate.count("n", n):
            raise ValueError(
                f"n={n} is public and must be the number of values, got {len(values)} values"
            )
        clamped = np.clip(np.nan_to_num(values, nan=low, posinf=high, neginf=low), low, high)
        # A sum of integers is exact, and a value moves it by no more than both ends are apart;
        # a mean that is rounded before it is noised could move by more. Dividing comes after.
        exponent = math.frexp(span / self.epsilon)[1] - _GRID_BITS
        moves = _nearest_multiple(high, exponent) - _nearest_multiple(low, exponent)
        total = sum(_nearest_multiple(float(value), exponent) for value in clamped)
        steps = math.ceil(moves / self.epsilon * (1.0 + 1e-12))
        generator = self._stream(seed, stream).generator
        noise = discrete_laplace(generator, numerator=steps, denominator=1, size=1)[0]
        return float(Fraction(total + noise, n) * Fraction(2) ** exponent)


class RandomizedResponse(_Randomized):
    """Each person tells the truth with probability p and lies otherwise: ε = ln(p/(1−p)).

    Local DP for one bit per person (Warner 1965); the true bits never leave them.

    Example:
        >>> mechanism = RandomizedResponse(epsilon=math.log(3))
        >>> round(mechanism.truth_probability, 6)
        0.75
        >>> answers = mechanism.randomize(np.array([True] * 600 + [False] * 400), seed=1)
        >>> abs(mechanism.estimate_mean(answers) - 0.6) < 0.1
        True
    """

    def __init__(self, *, epsilon: float) -> None:
        super().__init__()
        self.epsilon = _validate.positive("epsilon", epsilon)
        # Rounded down by more than the 2⁻⁵³ steps of a uniform draw, for large ε.
        self.truth_probability = 1.0 / (1.0 + math.exp(-self.epsilon)) - 2.0**-50
        if self.truth_probability <= 0.5:
            raise ValueError(f"epsilon={self.epsilon!r} is too small to tell truth from chance")

    @classmethod
    def from_probability(cls, truth_probability: float) -> RandomizedResponse:
        """From p in (0.5, 1) instead of ε."""
        p = _validate.real("truth_probability", truth_probability)
        if not 0.5 < p < 1.0:
            raise ValueError(f"truth_probability must be in (0.5, 1), got {p!r}")
        return cls(epsilon=math.log(p / (1.0 - p)))

    def randomize(
        self, bits: ArrayLike, seed: int | None = None, *, stream: NoiseStream | None = None
    ) -> NDArray[np.bool_]:
        """Randomized answers of the same shape."""
        truth = np.asarray(bits)
        if truth.dtype != np.bool_ and not np.isin(truth, (0, 1)).all():
            raise ValueError("bits must be True/False or 0/1")
        rng = self._stream(seed, stream).generator
        lies = rng.random(truth.shape) >= self.truth_probability
        return truth.astype(np.bool_) ^ lies

    def estimate_mean(self, answers: ArrayLike) -> float:
        """Unbiased estimate of the share of true bits; may leave [0, 1]."""
        p = self.truth_probability
        share = float(np.mean(np.asarray(answers, dtype=np.float64)))
        return (share - (1.0 - p)) / (2.0 * p - 1.0)


class ExponentialMechanism(_Randomized):
    """Chooses an option with probability ∝ exp(ε·utility/(2Δ)) (McSherry & Talwar 2007).

    The draw is as exact as float64: an option less likely than 2⁻⁵³ is never chosen, which adds a
    δ of that size to the pure ε.

    Args:
        epsilon: ε > 0 of one choice.
        sensitivity: How far one unit can move any utility.
        monotonic: True if one unit moves all utilities in the same direction: ε·u/Δ then.

    Example:
        >>> mechanism = ExponentialMechanism(epsilon=2.0, sensitivity=1.0)
        >>> mechanism.probabilities([0.0, 1.0]).round(3).tolist()
        [0.269, 0.731]
        >>> mechanism.select([0.0, 50.0], seed=0)
        1
    """

    def __init__(self, *, epsilon: float, sensitivity: float, monotonic: bool = False) -> None:
        super().__init__()
        self.epsilon = _validate.positive("epsilon", epsilon)
        self.sensitivity = _validate.positive("sensitivity", sensitivity)
        self._rate = self.epsilon / self.sensitivity
        if not _validate.flag("monotonic", monotonic):
            self._rate /= 2.0

    def probabilities(self, utilities: ArrayLike) -> NDArray[np.float64]:
        """Chance of each option."""
        scores = _finite_floats(utilities).astype(np.float64).reshape(-1) * self._rate
        if scores.size == 0:
            raise ValueError("there must be at least one option to choose from")
        weights = np.exp(scores - scores.max())
        return np.asarray(weights / weights.sum(), dtype=np.float64)

    def select(
        self, utilities: ArrayLike, seed: int | None = None, *, stream: NoiseStream | None = None
    ) -> int:
        """Index of the chosen option."""
        cumulative = np.cumsum(self.probabilities(utilities))
        draw = self._stream(seed, stream).generator.random() * cumulative[-1]
        return int(np.searchsorted(cumulative, draw, side="right").clip(0, len(cumulative) - 1))


def _finite_floats(data: ArrayLike) -> NDArray[Any]:
    values = np.asarray(data)
    if isinstance(data, float | int | list | tuple) and values.dtype.kind in "iu":
        values = values.astype(np.float64)
    if values.dtype not in (np.float16, np.float32, np.float64):
        raise TypeError(
            f"data must be floating point, got dtype {values.dtype}; convert it explicitly"
        )
    if not np.isfinite(values).all():
        raise ValueError("data holds NaN or infinite values; clip_l2 turns such units into zeros")
    return values


def _nearest_multiple(value: float, exponent: int) -> int:
    """round(value / 2**exponent), exactly, in integers."""
    numerator, denominator = value.as_integer_ratio()
    shift = denominator.bit_length() - 1 + exponent
    if shift <= 0:
        return numerator << -shift
    return (numerator + (1 << (shift - 1))) >> shift


def _times_power_of_two(number: int, exponent: int) -> float:
    """Exact product, rounded once, for integers of any size."""
    return number / (1 << -exponent) if exponent < 0 else float(number << exponent)
