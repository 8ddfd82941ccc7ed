"""What one unit's data went through, and its ε by each accountant.

A history's ε depends on *what* was recorded, never on the order or on whether it was saved and
loaded in between.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Final

from dp_fedmed.privacy import _validate
from dp_fedmed.privacy.accounting.events import MechanismKey, PrivacyEvent, Steps
from dp_fedmed.privacy.accounting.gaussian import gaussian_epsilon
from dp_fedmed.privacy.accounting.pld import pld_epsilon
from dp_fedmed.privacy.accounting.rdp import composed_epsilon

#: The name of an accountant in `ACCOUNTANTS`.
Method = str
#: (σ, q, T), the form in which checkpoints and reports show a history.
Row = tuple[float, float, int]
#: Converts steps to ε at δ. It may never be below the true ε, and falls when σ rises.
Accountant = Callable[[Steps, float], float]
#: Slow accountants that RDP bounds from above: it may be asked first, or instead.
BOUNDED_BY_RDP: Final = ("pld", "tight")


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

    __slots__ = ("_counts", "_epsilons", "_replaces")

    def __init__(self, events: Iterable[PrivacyEvent] = ()) -> None:
        self._counts: dict[MechanismKey, int] = {}
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
                where every step had q = 1; ``tight``, the closed form there and PLD elsewhere; or
                another of ``ACCOUNTANTS``.
        """
        delta = _validate.delta("delta", delta)
        _validate.choice("method", method, tuple(ACCOUNTANTS))
        if not self._counts:
            return 0.0
        cached = self._epsilons.get((delta, method))
        if cached is None:
            cached = self._epsilons[delta, method] = ACCOUNTANTS[method](self._counts, delta)
        return cached

    @property
    def is_poisson(self) -> bool:
        """Whether every step is a Poisson-sampled or full one, which `rows` tell completely."""
        return all(kind == "poisson" for kind, _, _ in self._counts)

    @property
    def is_full(self) -> bool:
        """Whether every step had q = 1, so that ε has a closed form."""
        return not _sampled(self._counts)

    def halved(self) -> tuple[History, History]:
        """The full steps as of replacement, with half their σ, and the sampled ones as they are."""
        full, sampled = History(), History()
        for key, count in self._counts.items():
            kind, sigma, q = key
            if _sampled([key]):
                sampled._add(key, count, replaces=self._replaces)
            else:
                full._add((kind, sigma / 2.0, q), count, replaces=True)
        return full, sampled


def _sampled(keys: Iterable[MechanismKey]) -> list[MechanismKey]:
    return sorted(key for key in keys if key[0] != "poisson" or key[2] != 1.0)


def _rdp(steps: Steps, delta: float) -> float:
    return composed_epsilon(steps, delta=delta)[0]


def _pld(steps: Steps, delta: float) -> float:
    # Composing fixed-size cohorts by PLD would need their own dominating pair (Zhu, Dong & Wang
    # 2022); the unamplified Gaussian is valid, and RDP below may be tighter.
    rows = [
        (sigma, q, count) if kind == "poisson" else (sigma / 2.0, 1.0, count)
        for (kind, sigma, q), count in steps.items()
    ]
    # Both are upper bounds of the same quantity, so the smaller one is, too.
    return min(pld_epsilon(rows, delta=delta), _rdp(steps, delta))


def _exact(steps: Steps, delta: float) -> float:
    for _, sigma, q in _sampled(steps):
        raise ValueError(
            f"method='exact' needs q = 1 in every step, but the history has (σ={sigma}, q={q});"
            " use method='pld' (tight) or 'rdp'"
        )
    precision = math.fsum(count / sigma**2 for (_, sigma, _), count in steps.items())
    return gaussian_epsilon(noise_multiplier=precision**-0.5, delta=delta)


def _tight(steps: Steps, delta: float) -> float:
    return _pld(steps, delta) if _sampled(steps) else _exact(steps, delta)


#: By name. Adding one is a file and a line here; for `privacy.accountant`, also a member of
#: `AccountantName` in config/choices.py.
ACCOUNTANTS: dict[str, Accountant] = {"rdp": _rdp, "pld": _pld, "exact": _exact, "tight": _tight}


def quickest_first(method: Method) -> tuple[Method, ...]:
    """The accountants to ask whether something fits: any of them may say yes."""
    return ("rdp", method) if method in BOUNDED_BY_RDP else (method,)


def worst_epsilon(histories: Iterable[History], *, delta: float, method: Method) -> float:
    """The largest ε of several histories; 0 for none.

    PLD is asked only of those whose RDP bound leaves room for a new maximum, which for many
    clients is a handful.
    """
    if method not in BOUNDED_BY_RDP:
        return max((h.epsilon(delta=delta, method=method) for h in histories), default=0.0)
    worst = 0.0
    for history in sorted(histories, key=lambda h: -h.epsilon(delta=delta)):
        if history.epsilon(delta=delta) <= worst:
            break
        worst = max(worst, history.epsilon(delta=delta, method=method))
    return worst


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
