"""The engine behind the three accountants: how what was spent adds up.

``History`` composes Gaussian steps (RDP, PLD or exact), ``compose_basic`` and
``compose_advanced`` compose bare (ε, δ) pairs. A history's ε depends on *what* was recorded, never
on the order or on whether it was saved and loaded in between.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal

import numpy as np

from dp_fedmed.privacy import _validate
from dp_fedmed.privacy.accounting.events import MechanismKey, PrivacyEvent
from dp_fedmed.privacy.accounting.gaussian import gaussian_epsilon
from dp_fedmed.privacy.accounting.pld import pld_epsilon
from dp_fedmed.privacy.accounting.rdp import (
    ORDERS,
    Array,
    conversion_terms,
    sampled_gaussian_rdp,
    without_replacement_rdp,
)

Method = Literal["rdp", "pld", "exact", "tight"]
METHODS: Final = ("rdp", "pld", "exact", "tight")

#: (σ, q, T), the form in which checkpoints and reports show a history.
Row = tuple[float, float, int]


class History:
    """What one unit's data went through: ``{(analysis, σ, q): ΣT}`` and its ε.

    Steps stated for a unit that is there or not (``add_remove``, ``zero_out``) and steps stated for
    a unit that is replaced do not compose: mixing them raises ``ValueError``.

    Example:
        >>> history = History()
        >>> history.add(PrivacyEvent.poisson(
        ...     unit="record", noise_multiplier=1.0, sample_rate=0.01, count=1000))
        >>> [round(history.epsilon(delta=1e-5, method=m), 2) for m in ("rdp", "pld")]
        [2.1, 1.83]
    """

    __slots__ = ("_counts", "_epsilons", "_replaces", "_vectors")

    def __init__(self, events: Iterable[PrivacyEvent] = ()) -> None:
        self._counts: dict[MechanismKey, int] = {}
        self._vectors: dict[MechanismKey, Array] = {}
        self._epsilons: dict[tuple[float, str], float] = {}
        self._replaces: bool | None = None  # the neighbouring relation; None before the first step
        for event in events:
            self.add(event)

    def __bool__(self) -> bool:
        return bool(self._counts)

    def add(self, event: PrivacyEvent, *, times: int = 1) -> None:
        """Compose with ``times`` repetitions of ``event``."""
        self._add(event.key, event.count * times, replaces=event.adjacency == "replace_one")

    def plus(self, *others: History) -> History:
        """A new history: this one composed with the others."""
        result = History()
        for history in (self, *others):
            for key, count in history._counts.items():
                result._add(key, count, replaces=history._replaces)
        return result

    def _add(self, key: MechanismKey, count: int, *, replaces: bool | None) -> None:
        if self._replaces is not None and self._replaces != replaces:
            raise ValueError(
                "a history has one neighbouring relation: steps for adjacency='add_remove' or"
                " 'zero_out' do not compose with steps for 'replace_one'; keep a History of each,"
                " and ask mixed_epsilon(removed, replaced, delta=…)"
            )
        total = _validate.count("the total number of steps", self._counts.get(key, 0) + count)
        if key not in self._vectors:
            self._vectors[key] = _rdp_vector(key)
        self._counts[key], self._replaces = total, replaces
        self._epsilons.clear()

    def rows(self) -> list[Row]:
        """Sorted (σ, q, T) rows as accounted: q = 1 and σ/2 where the analysis says so."""
        return [(sigma, q, self._counts[kind, sigma, q]) for kind, sigma, q in sorted(self._counts)]

    def epsilon(self, *, delta: float, method: Method = "rdp") -> float:
        """ε at ``delta``; 0 for an empty history.

        Args:
            delta: δ in (0, 1).
            method: ``rdp``; ``pld``, which is tighter and slower; ``exact``, which exists only
                where every step had q = 1; ``tight``, the closed form there and PLD elsewhere.
        """
        delta = _validate.delta("delta", delta)
        _validate.choice("method", method, METHODS)
        if not self._counts:
            return 0.0
        if method == "tight":
            method = "exact" if self.is_full else "pld"
        cached = self._epsilons.get((delta, method))
        if cached is None:
            compute = {"rdp": self._rdp, "pld": self._pld, "exact": self._exact}[method]
            cached = self._epsilons[delta, method] = compute(delta)
        return cached

    @property
    def is_poisson(self) -> bool:
        """Whether every step is a Poisson-sampled or full one, which `rows` tell completely."""
        return all(kind == "poisson" for kind, _, _ in self._counts)

    def halved(self) -> tuple[History, History]:
        """The full steps as of replacement, with half their σ, and the sampled ones as they are."""
        full, sampled = History(), History()
        for key, count in self._counts.items():
            kind, sigma, q = key
            if kind == "poisson" and q == 1.0:
                full._add((kind, sigma / 2.0, q), count, replaces=True)
            else:
                sampled._add(key, count, replaces=self._replaces)
        return full, sampled

    @property
    def is_full(self) -> bool:
        """Whether every step had q = 1, so that ε has a closed form."""
        return self.is_poisson and all(q == 1.0 for _, _, q in self._counts)

    def _rdp(self, delta: float) -> float:
        return self._rdp_at_best_order(delta)[0]

    def best_order(self, *, delta: float) -> float:
        """The Rényi order that gives the RDP ε (a value at either end of the grid is a hint)."""
        return self._rdp_at_best_order(_validate.delta("delta", delta))[1]

    def _rdp_at_best_order(self, delta: float) -> tuple[float, float]:
        # numpy picks the order, fsum gives the number: each order is a proof by itself, so a
        # rounding error in the choice costs tightness in the last digit, never soundness.
        keys = sorted(self._counts)
        counts = np.array([float(self._counts[key]) for key in keys])
        terms = conversion_terms(delta)
        # A plain sum over rows, not a matrix product: BLAS may add in another order tomorrow.
        matrix = np.array([self._vectors[key] for key in keys]) * counts[:, None]
        rough = matrix.sum(axis=0) + terms
        best = int(np.argmin(rough))
        total = math.fsum(self._counts[key] * float(self._vectors[key][best]) for key in keys)
        return max(0.0, total + float(terms[best])), float(ORDERS[best])

    def _pld(self, delta: float) -> float:
        rows: list[Row] = []
        for kind, sigma, q in sorted(self._counts):
            count = self._counts[kind, sigma, q]
            # Composing fixed-size cohorts by PLD would need their own dominating pair (Zhu, Dong
            # & Wang 2022); the unamplified Gaussian is valid, and RDP below may be tighter.
            fixed_size = kind == "without_replacement"
            rows.append((sigma / 2.0, 1.0, count) if fixed_size else (sigma, q, count))
        # Both are upper bounds of the same quantity, so the smaller one is, too.
        return min(pld_epsilon(rows, delta=delta), self.epsilon(delta=delta, method="rdp"))

    def _exact(self, delta: float) -> float:
        sampled = [key for key in sorted(self._counts) if key[0] != "poisson" or key[2] != 1.0]
        if sampled:
            _, sigma, q = sampled[0]
            raise ValueError(
                f"method='exact' needs q = 1 in every step, but the history has (σ={sigma}, q={q});"
                " use method='pld' (tight) or 'rdp'"
            )
        precision = math.fsum(count / sigma**2 for (_, sigma, _), count in self._counts.items())
        return gaussian_epsilon(noise_multiplier=precision**-0.5, delta=delta)


def worst_epsilon(histories: Iterable[History], *, delta: float, method: Method) -> float:
    """The largest ε of several histories; 0 for none.

    PLD is asked only of those whose RDP bound leaves room for a new maximum, which for many
    clients is a handful.
    """
    if method not in ("pld", "tight"):
        return max((h.epsilon(delta=delta, method=method) for h in histories), default=0.0)
    worst = 0.0
    for history in sorted(histories, key=lambda h: -h.epsilon(delta=delta)):
        if history.epsilon(delta=delta) <= worst:
            break
        worst = max(worst, history.epsilon(delta=delta, method=method))
    return worst


def _rdp_vector(key: MechanismKey) -> Array:
    kind, sigma, q = key
    if kind == "poisson":
        return sampled_gaussian_rdp(noise_multiplier=sigma, sample_rate=q)
    return without_replacement_rdp(noise_multiplier=sigma, sample_rate=q)


def compose_basic(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Sum of ε and sum of δ (Dwork et al. 2006); valid for any mechanisms.

    Example:
        >>> compose_basic([(1.0, 0.0)] * 10)
        (10.0, 0.0)
    """
    return math.fsum(e for e, _ in pairs), min(1.0, math.fsum(d for _, d in pairs))


def compose_advanced(
    pairs: Sequence[tuple[float, float]], *, slack_delta: float
) -> tuple[float, float]:
    """Advanced composition with its second term, for pairs that may differ.

    ε = √(2 ln(1/δ′) Σε²) + Σ ε(e^ε − 1), δ = Σδ + δ′ (Dwork, Rothblum & Vadhan 2010). Without
    the second term, which is often left out, the formula is not a theorem.

    Example:
        >>> epsilon, _ = compose_advanced([(1.0, 0.0)] * 10, slack_delta=1e-5)
        >>> round(epsilon, 1)
        32.4
    """
    slack = _validate.delta("slack_delta", slack_delta)
    squares = math.fsum(e * e for e, _ in pairs)
    # exp overflows above 709; basic composition wins long before.
    drift = math.fsum(e * math.expm1(e) if e < 700.0 else math.inf for e, _ in pairs)
    epsilon = math.sqrt(-2.0 * math.log(slack) * squares) + drift
    return epsilon, min(1.0, math.fsum([*(d for _, d in pairs), slack]))


def most_repeats(fits: Callable[[int], bool], *, limit: int = 10**12) -> int:
    """Largest n ≥ 0 with ``fits(n)``, for a condition that fails from some n on.

    Example:
        >>> most_repeats(lambda n: n * n <= 200)
        14
    """
    if not fits(1):
        return 0
    lo, hi = 1, 2
    while fits(hi):
        if hi >= limit:
            return limit
        lo, hi = hi, min(hi * 2, limit)
    while hi - lo > 1:
        middle = (lo + hi) // 2
        lo, hi = (middle, hi) if fits(middle) else (lo, middle)
    return lo
