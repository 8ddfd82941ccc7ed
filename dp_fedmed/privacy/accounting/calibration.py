"""Calibration: the noise for a target ε, and the questions the other way round.

The guarantee kept here: a σ, a number of rounds or a rate that is returned has, by the accountant
that was asked for, an ε of at most the target. The accountant that enforces must be the same.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from dp_fedmed.privacy import _validate
from dp_fedmed.privacy.accounting.events import PrivacyEvent
from dp_fedmed.privacy.accounting.gaussian import gaussian_sigma
from dp_fedmed.privacy.accounting.history import (
    ACCOUNTANTS,
    BOUNDED_BY_RDP,
    History,
    Method,
    most_repeats,
)
from dp_fedmed.privacy.accounting.rdp import conversion_terms, sampled_gaussian_rdp

#: σ is returned within this of the smallest that meets the target (half of the promised 0.1 %).
_TOLERANCE: Final = 5e-4
_SMALLEST_SIGMA: Final = 1e-3
#: Accountants whose σ at q = 1 needs no search.
_WITH_CLOSED_FORM: Final = ("rdp", "pld", "exact", "tight")


def compute_noise_multiplier(
    *,
    target_epsilon: float,
    target_delta: float,
    sample_rate: float,
    steps_per_round: int,
    num_rounds: int,
    accountant: Method = "rdp",
    max_noise_multiplier: float = 1e4,
) -> float:
    """Smallest σ (within 0.1 %) with which the whole run stays within the target.

    Args:
        target_epsilon: ε that may be spent.
        target_delta: δ at which it is stated.
        sample_rate: q of Poisson sampling, in (0, 1].
        steps_per_round: Noisy steps in a round (1 at client level).
        num_rounds: Rounds in which the unit may take part.
        accountant: ``rdp``, ``pld``, ``tight`` or (q = 1) ``exact``; enforce with the same one.
        max_noise_multiplier: Give up above this σ.

    Returns:
        σ; its ε by ``accountant`` never exceeds the target.

    Raises:
        ValueError: If the target cannot be met, with what could.

    Example:
        >>> sigma = compute_noise_multiplier(
        ...     target_epsilon=8.0, target_delta=1e-5, sample_rate=0.1,
        ...     steps_per_round=10, num_rounds=100)
        >>> round(sigma, 2)
        2.17
    """
    q = _validate.sample_rate("sample_rate", sample_rate)
    steps = _steps(steps_per_round, num_rounds)
    target = _validate.positive("target_epsilon", target_epsilon)
    delta = _validate.delta("target_delta", target_delta)
    method = _method(accountant, q)
    limit = _validate.noise_multiplier("max_noise_multiplier", max_noise_multiplier)

    def epsilon_by(sigma: float, by: Method) -> float:
        return _epsilon(sigma, q, steps, delta, by)

    if q == 1.0 and method in _WITH_CLOSED_FORM:
        sigma = _full_batch_sigma(target, delta, steps, method)
        while sigma <= limit and epsilon_by(sigma, method) > target:
            sigma *= 1.0 + 1e-9
        if sigma <= limit:
            return sigma
    elif method in BOUNDED_BY_RDP and -math.expm1(steps * math.log1p(-q)) <= delta:
        raise ValueError(
            f"with sample_rate={q:g} and {steps} steps a unit takes part with a chance below"
            f" target_delta={delta:g}, so every σ meets any target; that protects nobody who does"
            " take part: choose a smaller δ"
        )
    start = max(0.4, q * math.sqrt(steps) * gaussian_sigma(epsilon=target, delta=delta))
    try:
        return _search(epsilon_by, method, target, start=start, limit=limit)
    except _UnreachableError as error:
        raise ValueError(
            _explain(error, target, delta, q, steps_per_round, num_rounds, method, limit)
        ) from None


def calibrate(
    events_at: Callable[[float], Sequence[PrivacyEvent]],
    *,
    target_epsilon: float,
    target_delta: float,
    accountant: Method = "rdp",
    spent: History | None = None,
    max_noise_multiplier: float = 1e4,
) -> float:
    """Smallest σ for any plan, on top of what was spent before.

    Args:
        events_at: The planned events, given a σ.
        target_epsilon: ε that the whole, including ``spent``, may reach.
        target_delta: δ at which it is stated.
        accountant: ``rdp``, ``pld``, ``tight`` or ``exact``.
        spent: A history that stays as it is.
        max_noise_multiplier: Give up above this σ.

    Returns:
        σ, within 0.1 % of the smallest.

    Example:
        >>> def fixed_cohorts(sigma):
        ...     return [PrivacyEvent.fixed_size(
        ...         unit="client", noise_multiplier=sigma, cohort_size=10, population=100,
        ...         adjacency="replace_one", count=50)]
        >>> round(calibrate(fixed_cohorts, target_epsilon=8.0, target_delta=1e-5), 1)
        2.3
    """
    target = _validate.positive("target_epsilon", target_epsilon)
    delta = _validate.delta("target_delta", target_delta)
    before = History() if spent is None else spent
    method = _validate.choice("accountant", accountant, tuple(ACCOUNTANTS))
    limit = _validate.noise_multiplier("max_noise_multiplier", max_noise_multiplier)

    def epsilon_by(sigma: float, by: Method) -> float:
        return before.plus(History(events_at(sigma))).epsilon(delta=delta, method=by)

    try:
        return _search(epsilon_by, method, target, start=1.0, limit=limit)
    except _UnreachableError as error:
        already = before.epsilon(delta=delta, method=method)
        raise ValueError(
            f"no noise_multiplier up to {limit:g} keeps the plan within target_epsilon={target:g}:"
            f" {error} ({already:.4g} was spent before); plan fewer steps or raise the target"
        ) from None


def compute_epsilon(
    *,
    noise_multiplier: float,
    target_delta: float,
    sample_rate: float,
    steps_per_round: int,
    num_rounds: int,
    accountant: Method = "rdp",
) -> float:
    """ε of a planned run.

    Example:
        >>> epsilon = compute_epsilon(
        ...     noise_multiplier=1.0, target_delta=1e-5, sample_rate=0.01,
        ...     steps_per_round=10, num_rounds=100)
        >>> round(epsilon, 3)
        2.101
    """
    return get_privacy_spent(
        noise_multiplier=noise_multiplier,
        sample_rate=sample_rate,
        steps=_steps(steps_per_round, num_rounds),
        delta=target_delta,
        accountant=accountant,
    )


def get_privacy_spent(
    *,
    noise_multiplier: float,
    sample_rate: float,
    steps: int,
    delta: float,
    accountant: Method = "rdp",
) -> float:
    """ε of ``steps`` Poisson-sampled Gaussian steps.

    Example:
        >>> round(get_privacy_spent(
        ...     noise_multiplier=2.0, sample_rate=1.0, steps=50, delta=1e-5, accountant="exact"), 3)
        20.676
    """
    q = _validate.sample_rate("sample_rate", sample_rate)
    sigma = _validate.noise_multiplier("noise_multiplier", noise_multiplier)
    count = _validate.count("steps", steps)
    return _epsilon(sigma, q, count, _validate.delta("delta", delta), _method(accountant, q))


def compute_max_rounds(
    *,
    noise_multiplier: float,
    target_epsilon: float,
    target_delta: float,
    sample_rate: float,
    steps_per_round: int,
    accountant: Method = "rdp",
) -> int:
    """Most rounds within the target; 0 if not even one fits.

    Example:
        >>> compute_max_rounds(
        ...     noise_multiplier=2.2, target_epsilon=8.0, target_delta=1e-5,
        ...     sample_rate=0.1, steps_per_round=10)
        102
    """
    q = _validate.sample_rate("sample_rate", sample_rate)
    sigma = _validate.noise_multiplier("noise_multiplier", noise_multiplier)
    target = _validate.positive("target_epsilon", target_epsilon)
    delta = _validate.delta("target_delta", target_delta)
    steps = _validate.count("steps_per_round", steps_per_round)
    method = _method(accountant, q)
    limit = min(10**12, _validate.MAX_COUNT // steps)
    return most_repeats(
        lambda n: _epsilon(sigma, q, steps * n, delta, method) <= target, limit=limit
    )


def compute_max_sample_rate(
    *,
    noise_multiplier: float,
    target_epsilon: float,
    target_delta: float,
    steps_per_round: int,
    num_rounds: int,
    accountant: Method = "rdp",
) -> float:
    """Largest q (within 0.1 %) of Poisson sampling within the target.

    Example:
        >>> q = compute_max_sample_rate(
        ...     noise_multiplier=2.2, target_epsilon=8.0, target_delta=1e-5,
        ...     steps_per_round=10, num_rounds=100)
        >>> round(q, 3)
        0.101
    """
    sigma = _validate.noise_multiplier("noise_multiplier", noise_multiplier)
    target = _validate.positive("target_epsilon", target_epsilon)
    delta = _validate.delta("target_delta", target_delta)
    steps = _steps(steps_per_round, num_rounds)
    method = _method(accountant, 0.5)

    def fits(q: float) -> bool:
        return _epsilon(sigma, q, steps, delta, method) <= target

    if fits(1.0):
        return 1.0
    lo, hi = 1e-9, 1.0
    if not fits(lo):
        raise ValueError(
            f"no sample_rate down to {lo:g} keeps {steps} steps with noise_multiplier={sigma:g}"
            f" within target_epsilon={target:g}; raise the noise or the target"
        )
    while hi > lo * (1.0 + _TOLERANCE):
        middle = math.sqrt(lo * hi)
        lo, hi = (middle, hi) if fits(middle) else (lo, middle)
    return lo


class _UnreachableError(Exception):
    """No σ in the allowed range meets the target."""


def _smallest_sigma(
    epsilon_at: Callable[[float], float],
    target: float,
    *,
    start: float,
    limit: float,
    slope: float = 1.0,
) -> float:
    """Bracket the target, then close in by secants on (log σ, log ε), one side at a time."""
    sigma = min(max(start, _SMALLEST_SIGMA), limit)
    lo: tuple[float, float] | None = None
    hi: tuple[float, float] | None = None
    while lo is None or hi is None:
        gap = math.log(max(epsilon_at(sigma), 1e-12) / target)
        if gap > 0.0:
            lo = (math.log(sigma), gap)
            if sigma >= limit:
                raise _UnreachableError(f"even at σ={limit:g} ε is {math.exp(gap) * target:.4g}")
            # ε falls about as σ to the power −slope, so the gap says how far to go.
            step = min(max(gap * 1.1 / slope, 0.005), 2.0)
        else:
            hi = (math.log(sigma), gap)
            if sigma <= _SMALLEST_SIGMA:
                return sigma
            step = max(min(gap * 1.1 / slope, -0.005), -2.0)
        if lo is None or hi is None:
            sigma = min(max(math.exp(math.log(sigma) + step), _SMALLEST_SIGMA), limit)
    moved_lo = False
    for turn in range(200):
        (x0, y0), (x1, y1) = lo, hi
        if x1 - x0 <= _TOLERANCE:
            break
        secant = x0 + (x1 - x0) * (y0 / (y0 - y1)) if turn % 4 < 3 else 0.5 * (x0 + x1)
        # Aim just beyond the root, alternately, so that both ends close in on it.
        secant += 0.4 * _TOLERANCE if moved_lo else -0.4 * _TOLERANCE
        x = min(max(secant, x0 + 0.1 * _TOLERANCE), x1 - 0.1 * _TOLERANCE)
        gap = math.log(max(epsilon_at(math.exp(x)), 1e-12) / target)
        moved_lo = gap > 0.0
        lo, hi = ((x, gap), hi) if moved_lo else (lo, (x, gap))
    return math.exp(hi[0])


def _search(
    epsilon_by: Callable[[float, Method], float],
    method: Method,
    target: float,
    *,
    start: float,
    limit: float,
) -> float:
    """``_smallest_sigma``; for PLD, which is slow, RDP tells where to begin and how ε falls."""
    slope = 1.0
    if method in BOUNDED_BY_RDP:
        with contextlib.suppress(_UnreachableError):
            start = _smallest_sigma(
                lambda sigma: epsilon_by(sigma, "rdp"), target, start=start, limit=limit
            )
            ratio = epsilon_by(start, "rdp") / epsilon_by(start * 1.02, "rdp")
            slope = max(math.log(ratio) / math.log(1.02), 0.5)
    return _smallest_sigma(
        lambda sigma: epsilon_by(sigma, method), target, start=start, limit=limit, slope=slope
    )


def _full_batch_sigma(target: float, delta: float, steps: int, method: Method) -> float:
    if method != "rdp":
        return gaussian_sigma(epsilon=target, delta=delta) * math.sqrt(steps)
    room = target - conversion_terms(delta)
    if not (room > 0.0).any():
        return math.inf
    unit = sampled_gaussian_rdp(noise_multiplier=1.0, sample_rate=1.0)
    needed = np.divide(steps * unit, room, out=np.full_like(room, np.inf), where=room > 0.0)
    return math.sqrt(float(needed.min()))


def _explain(
    error: _UnreachableError,
    target: float,
    delta: float,
    q: float,
    steps_per_round: int,
    num_rounds: int,
    method: Method,
    limit: float,
) -> str:
    head = (
        f"target_epsilon={target:g} at delta={delta:g} cannot be met by {num_rounds} rounds of"
        f" {steps_per_round} steps with sample_rate={q:g}: {error}"
    )
    steps = steps_per_round * num_rounds
    reachable = _epsilon(limit, q, steps, delta, method)
    options = [f"target_epsilon of at least {reachable * 1.001:.4g}"]
    rounds = most_repeats(
        lambda n: _epsilon(limit, q, steps_per_round * n, delta, method) <= target,
        limit=num_rounds,
    )
    if rounds:
        options.append(f"at most {rounds} rounds")
    for rate in (q / 10.0**k for k in range(1, 7)):
        if method != "exact" and _epsilon(limit, rate, steps, delta, method) <= target:
            options.append(f"a sample_rate of {rate:g}")
            break
    if method == "rdp" and reachable < 0.1:
        options.append("accountant='tight', which has no floor at small ε")
    return f"{head}. What could be met (σ up to {limit:g}): {'; or '.join(options)}"


def _epsilon(sigma: float, q: float, steps: int, delta: float, method: Method) -> float:
    event = PrivacyEvent.poisson(unit="record", noise_multiplier=sigma, sample_rate=q, count=steps)
    return History([event]).epsilon(delta=delta, method=method)


def _steps(steps_per_round: int, num_rounds: int) -> int:
    per_round = _validate.count("steps_per_round", steps_per_round)
    return _validate.count(
        "steps_per_round × num_rounds", per_round * _validate.count("num_rounds", num_rounds)
    )


def _method(accountant: Method, q: float) -> Method:
    method = _validate.choice("accountant", accountant, tuple(ACCOUNTANTS))
    if method == "exact" and q < 1.0:
        raise ValueError(
            f"accountant='exact' exists only for sample_rate=1, got {q:g}; use 'pld' or 'rdp'"
        )
    return method
