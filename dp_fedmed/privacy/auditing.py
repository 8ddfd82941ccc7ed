"""Auditing: from guesses about who was in the data to a lower bound on what a release gives away.

One run with many canaries (Steinke, Nasr and Jagielski 2023, "Privacy Auditing with One (1)
Training Run"): each of m canaries is in the data by its own fair coin. An (ε, δ)-DP release cannot
let anybody guess many coins right, so many right guesses are evidence against ε. The guarantee kept
here: for a release that is (ε, δ)-DP, `epsilon_lower_bound` exceeds ε with probability at most
1 − confidence, provided that the number of guesses was fixed before a score was seen, which is what
`plan_guesses` is for.

One canary with many releases (Nasr et al. 2023, "Tight Auditing of Differentially Private Machine
Learning"): `gaussian_lower_bound` exceeds μ for a μ-GDP release with probability at most
1 − confidence. A step with noise multiplier σ is accounted as 1/σ-GDP, so this tests σ itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

from dp_fedmed.privacy import _validate

__all__ = [
    "Guesses",
    "count_correct",
    "epsilon_lower_bound",
    "gaussian_lower_bound",
    "p_value",
    "plan_guesses",
]

#: ε above which no audit of a few thousand canaries has anything to say.
_LARGEST: Final = 64.0
#: `plan_guesses` tries so many numbers of guesses, and weakens the noise by this factor at a time.
_SIZES: Final = 24
_WEAKENED: Final = 1.12
#: A build counts as refuted when it is so even if the guesses are this many deviations unlucky.
_UNLUCKY: Final = 3.0


def p_value(*, canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Chance of at least so many right guesses, were the release (ε, δ)-DP (Theorem 5.2).

    With f(v) = P[Binomial(r, e^ε/(1 + e^ε)) ≥ v], it is f(v) + 2mδ·max_i (f(v − i) − f(v))/i.

    Args:
        canaries: m, of which each was included by a fair coin.
        guesses: r, the canaries on which a guess was made; on the others the attacker abstained.
        correct: v, the right ones.
        epsilon: ε of the hypothesis.
        delta: δ of the hypothesis.

    Example:
        The release of a fair coin: two right guesses of two are no evidence.

        >>> p_value(canaries=2, guesses=2, correct=2, epsilon=0.0, delta=0.0)
        0.25
    """
    m, r, v = _counts(canaries, guesses, correct)
    q = float(special.expit(_validate.non_negative("epsilon", epsilon)))
    delta = _validate.non_negative("delta", delta)
    tail = float(stats.binom.sf(v - 1, r, q))
    if delta == 0.0 or v == 0:
        return min(1.0, tail)
    below = np.cumsum(stats.binom.pmf(np.arange(v - 1, -1, -1), r, q))
    worst = float((below / np.arange(1, v + 1)).max())
    return min(1.0, tail + 2.0 * m * delta * worst)


def epsilon_lower_bound(
    *, canaries: int, guesses: int, correct: int, delta: float, confidence: float = 0.95
) -> float:
    """The largest ε that so many right guesses refute; 0 if they refute none.

    ``guesses`` must be fixed before a score was seen; ``confidence`` is one minus the chance of
    refuting a true claim.

    Example:
        The paper's own: 75 of 100 guesses among 1000 canaries.

        >>> round(epsilon_lower_bound(canaries=1000, guesses=100, correct=75, delta=1e-4), 3)
        0.673
    """
    m, r, v = _counts(canaries, guesses, correct)
    level = 1.0 - _confidence(confidence)

    def refuted(epsilon: float) -> bool:
        return p_value(canaries=m, guesses=r, correct=v, epsilon=epsilon, delta=delta) < level

    low, high = 0.0, 1.0
    if not refuted(low):
        return 0.0
    while refuted(high) and high < _LARGEST:
        low, high = high, 2.0 * high
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


@dataclass(frozen=True, kw_only=True)
class Guesses:
    """How many canaries are guessed to be in (the highest scores) and out (the lowest)."""

    included: int
    excluded: int

    def __post_init__(self) -> None:
        _validate.count("included", self.included, minimum=0)
        _validate.count("excluded", self.excluded, minimum=0)
        if self.total == 0:
            raise ValueError("at least one canary must be guessed about")

    @property
    def total(self) -> int:
        """All guesses."""
        return self.included + self.excluded


def count_correct(scores: ArrayLike, coins: ArrayLike, guesses: Guesses) -> int:
    """Right guesses, when the highest scores are guessed to be in and the lowest out.

    Example:
        >>> count_correct([3.0, -2.0, 0.1, 0.2], [True, False, False, True],
        ...               Guesses(included=1, excluded=1))
        2
    """
    values, truth = np.asarray(scores, dtype=np.float64), np.asarray(coins, dtype=np.bool_)
    if values.ndim != 1 or values.shape != truth.shape:
        raise ValueError(f"{values.shape} scores do not fit {truth.shape} coins")
    if not np.isfinite(values).all():
        raise ValueError("scores must be finite numbers")
    if guesses.total > len(values):
        raise ValueError(f"{guesses.total} guesses are more than {len(values)} canaries")
    order = np.argsort(values, kind="stable")
    chosen_in = order[len(order) - guesses.included :]
    chosen_out = order[: guesses.excluded]
    return int(truth[chosen_in].sum() + (~truth[chosen_out]).sum())


def gaussian_lower_bound(
    *, hits: int, present: int, false_alarms: int, absent: int, confidence: float = 0.95
) -> float:
    """The largest μ such that these guesses refute μ-GDP (Dong, Roth and Su 2022); 0 if none.

    A μ-GDP release allows no test with TPR above Φ(Φ⁻¹(FPR) + μ). Both rates are bounded by Clopper
    and Pearson, each at half of what confidence leaves.

    Args:
        hits: releases with the canary that a threshold, fixed before, took for such.
        present: releases with the canary.
        false_alarms: releases without it that the threshold took for such with it.
        absent: releases without it.
        confidence: one minus the chance of exceeding a true μ.

    Example:
        >>> round(gaussian_lower_bound(hits=420, present=500, false_alarms=80, absent=500), 2)
        1.72
    """
    k, n = _validate.count("hits", hits, minimum=0), _validate.count("present", present)
    j, m = (
        _validate.count("false_alarms", false_alarms, minimum=0),
        _validate.count("absent", absent),
    )
    if k > n or j > m:
        raise ValueError(f"{k} of {n} and {j} of {m} releases cannot have been taken for present")
    level = 0.5 * (1.0 - _confidence(confidence))
    tpr = float(stats.beta.ppf(level, k, n - k + 1)) if k else 0.0
    fpr = float(stats.beta.ppf(1.0 - level, j + 1, m - j)) if j < m else 1.0
    return max(0.0, float(special.ndtri(tpr) - special.ndtri(fpr))) if tpr > fpr else 0.0


def plan_guesses(
    *,
    canaries: int,
    claim: float,
    delta: float,
    noise_multiplier: float,
    sample_rate: float,
    steps: int,
    repeats: int = 1,
    confidence: float = 0.95,
) -> Guesses:
    """The numbers of guesses of one run with which the weakest refutable build is refuted.

    It looks at public settings only, never at a score: choosing the best of several numbers
    afterwards would need a union bound. The scores are expected to be those of T Poisson-sampled
    Gaussian releases of a canary that fills the clipping norm, with the noise divided by ever
    larger factors until even unlucky guesses give a bound above the claim. If they never do, every
    canary is guessed about, which makes the largest bound possible.

    Args:
        canaries: m of one run.
        claim: ε that is to be refuted.
        delta: δ of the claim.
        noise_multiplier: σ of a step.
        sample_rate: q of a step.
        steps: T.
        repeats: independent runs whose guesses are counted together.
        confidence: of the bound.

    Example:
        >>> plan = plan_guesses(canaries=3000, claim=0.93, delta=1e-5, noise_multiplier=4.0,
        ...                     sample_rate=1.0, steps=1)
        >>> plan.included == plan.excluded, 50 < plan.total < 600
        (True, True)
    """
    m = _validate.count("canaries", canaries)
    everything = Guesses(included=m - m // 2, excluded=m // 2)
    counts, weights = _taken_part(sample_rate, steps)
    sizes = np.unique(np.geomspace(1, m // 2 or 1, _SIZES).astype(np.int64))
    factor = 1.0
    while factor < 1e3:
        signal = factor * counts / (noise_multiplier * math.sqrt(steps))
        right_in, right_out = _expected_right(signal, weights, sizes / m)
        # Every pair of numbers of guesses at once; none of one kind is a choice too.
        ks = np.concatenate([[0], sizes])
        in_hits = np.concatenate([[0.0], sizes * right_in])
        out_hits = np.concatenate([[0.0], sizes * right_out])
        r = repeats * (ks[:, None] + ks[None, :])
        v = repeats * (in_hits[:, None] + out_hits[None, :])
        v = v - _UNLUCKY * np.sqrt(v * (1.0 - v / np.maximum(r, 1)))
        bound = _rough_bound(r, v, repeats * m, delta, confidence)
        best = np.unravel_index(int(np.argmax(bound)), bound.shape)
        if bound[best] > claim:
            found = Guesses(included=int(ks[best[0]]), excluded=int(ks[best[1]]))
            total = repeats * found.total
            top = epsilon_lower_bound(
                canaries=repeats * m,
                guesses=total,
                correct=total,
                delta=delta,
                confidence=confidence,
            )
            return found if top > claim else everything
        factor *= _WEAKENED
    return everything


def _taken_part(sample_rate: float, steps: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """In how many of T steps an included canary takes part, and how likely each number is."""
    q = _validate.sample_rate("sample_rate", sample_rate)
    steps = _validate.count("steps", steps)
    if q == 1.0:
        return np.array([float(steps)]), np.ones(1)
    low, high = (float(stats.binom.ppf(p, steps, q)) for p in (1e-9, 1.0 - 1e-9))
    counts = np.unique(np.linspace(low, high, 200).round())
    weights = stats.binom.pmf(counts, steps, q)
    return counts, weights / weights.sum()


def _expected_right(
    signal: NDArray[Any], weights: NDArray[Any], shares: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Chances that the guesses are right when these shares of all canaries are guessed in, out.

    An excluded canary's score is standard normal; an included one's is shifted by its signal.
    """
    grid = np.linspace(-9.0, 9.0 + float(signal.max()), 4000)
    above_out = stats.norm.sf(grid)
    above_in = weights @ stats.norm.sf(grid[None, :] - signal[:, None])
    above = 0.5 * (above_in + above_out)  # falls with the threshold
    high = np.interp(-shares, -above, np.arange(len(grid)))
    low = np.interp(shares, 1.0 - above, np.arange(len(grid)))
    index = np.arange(len(grid))
    right_in = 0.5 * np.interp(high, index, above_in) / shares
    right_out = 0.5 * (1.0 - np.interp(low, index, above_out)) / shares
    return np.clip(right_in, 0.0, 1.0), np.clip(right_out, 0.0, 1.0)


def _rough_bound(
    r: NDArray[Any], v: NDArray[Any], m: int, delta: float, confidence: float
) -> NDArray[Any]:
    """Clopper and Pearson's bound, as log-odds: the audit's own but for δ, and fast."""
    level = max(1e-6, (1.0 - confidence) / (1.0 + 2.0 * m * delta))
    v = np.minimum(v, r)
    with np.errstate(invalid="ignore", divide="ignore"):
        q = np.where((r > 0) & (v > 0), stats.beta.ppf(level, v, r - v + 1.0), 0.5)
    return np.asarray(special.logit(np.clip(q, 0.5, 1.0 - 1e-12)), dtype=np.float64)


def _confidence(value: float) -> float:
    result = _validate.real("confidence", value)
    if not 0.0 < result < 1.0:
        raise ValueError(f"confidence must lie between 0 and 1, got {result!r}; for example 0.95")
    return result


def _counts(canaries: int, guesses: int, correct: int) -> tuple[int, int, int]:
    m = _validate.count("canaries", canaries)
    r = _validate.count("guesses", guesses)
    v = _validate.count("correct", correct, minimum=0)
    if not v <= r <= m:
        raise ValueError(
            f"correct ≤ guesses ≤ canaries must hold, got correct={v}, guesses={r}, canaries={m}"
        )
    return m, r, v
