"""A guarantee as odds: how often an attacker can be right about one unit.

An (ε, δ)-DP release bounds every test of "was this unit in the data?": with false-positive rate a
and false-negative rate b, a + e^ε·b ≥ 1 − δ and e^ε·a + b ≥ 1 − δ (Kairouz, Oh & Viswanath 2015,
"The composition theorem for differential privacy", theorem 2.1). The bound holds for any attacker,
whatever else he knows.
"""

from __future__ import annotations

import math

from dp_fedmed.privacy import _validate


def guess_probability(*, epsilon: float, delta: float, prior: float = 0.5) -> float:
    """The most often that any attacker guesses right whether one unit was in the data.

    At a prior of one half this is (e^ε + δ)/(1 + e^ε) (Humphries et al. 2023, "Investigating
    membership inference attacks under data dependencies"). Other priors: the success is linear in
    the two error rates, so it is largest in a corner of the region that they may lie in.

    An ``epsilon`` of ``inf`` promises nothing; ``prior`` is what the attacker believes before.

    Example:
        >>> round(guess_probability(epsilon=1.0, delta=1e-5), 4)
        0.7311
        >>> guess_probability(epsilon=0.0, delta=0.0)
        0.5
    """
    if epsilon != math.inf:
        epsilon = _validate.non_negative("epsilon", epsilon)
    if delta != 0.0:
        delta = _validate.delta("delta", delta)
    prior = _validate.real("prior", prior)
    if not 0.0 <= prior <= 1.0:
        raise ValueError(f"prior must lie in [0, 1], got {prior!r}: for example 0.5")
    balanced = 1.0 - (1.0 - delta) / (1.0 + math.exp(min(epsilon, 700.0)))
    always_no = (1.0 - prior) + prior * delta
    always_yes = prior + (1.0 - prior) * delta
    return min(1.0, max(balanced, always_no, always_yes))


def percent_up(probability: float) -> str:
    """A percentage, rounded up, and 100 % only where nothing is promised any more.

    >>> percent_up(0.73106), percent_up(0.99966), percent_up(1.0)
    ('73.2 %', '99.97 %', '100 %')
    """
    for decimals in (1, 2, 3, 4):
        scale = 10.0**decimals
        up = math.ceil(100.0 * probability * scale * (1 - 1e-12)) / scale
        if up < 100.0:
            return f"{up:.{decimals}f} %"
    return "100 %"
