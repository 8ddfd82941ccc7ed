"""Whether rounds fit a budget, and what many clients have spent: by PLD, but asked seldom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dp_fedmed.privacy import History, PrivacyEvent
from dp_fedmed.privacy.accounting.history import (
    BOUNDED_BY_RDP,
    Method,
    most_repeats,
    quickest_first,
)

#: With more different clients than this, RDP calibrates each of them: PLD takes a second for ten.
MOST_TIGHT = 32
#: Between rounds, PLD converts up to so many different histories; at the end, up to so many.
MOST_EACH_ROUND, MOST_AT_THE_END = 3, MOST_TIGHT
_MANY = 10**15


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What may be spent.

    Attributes:
        rounds: of the whole run.
        method: the accountant that calibrates and enforces.
        sample_epsilon: for one record; None for no limit.
        user_epsilon: for one client; None for no limit.
    """

    rounds: int
    method: Method = "tight"
    sample_epsilon: float | None = None
    user_epsilon: float | None = None


@dataclass(frozen=True, kw_only=True)
class Question:
    """A round's event, on top of what was spent before the phase, against a target.

    Attributes:
        event: what one round costs.
        before: what earlier phases have spent.
        target: ε that may be spent in all; None for no limit.
        delta: of the target.
        planned: rounds of the phase.
    """

    event: PrivacyEvent
    before: History
    target: float | None
    delta: float
    planned: int

    def epsilon_of(self, rounds: int, method: Method) -> float:
        """What so many rounds take ε to."""
        after = self.before.plus(History([self.event.times(rounds)]))
        return after.epsilon(delta=self.delta, method=method)


class RoundBudget:
    """Answers how many rounds fit, and remembers: never more than the accountant in force allows.

    RDP is asked first where it bounds the accountant in force; then that one about the whole
    plan, and only then about a single number of rounds.
    """

    def __init__(self, method: Method) -> None:
        self._methods = quickest_first(method)
        self._known: dict[object, tuple[int, int]] = {}  # rounds that fit, and that do not

    def fits(self, asked: Question, rounds: int) -> bool:
        """Whether so many rounds fit."""
        if asked.target is None or rounds <= 0:
            return True
        key = (asked.event, *asked.before.rows())
        low, high = self._known.get(key, (0, _MANY))
        for probe in (max(rounds, asked.planned), rounds):
            if low < probe < high:
                low, high = (probe, high) if self._holds(asked, probe) else (low, probe)
        self._known[key] = (low, high)
        return rounds <= low

    def _holds(self, asked: Question, rounds: int) -> bool:
        target = asked.target or 0.0
        return any(asked.epsilon_of(rounds, method) <= target for method in self._methods)

    def most(self, asked: Question) -> int:
        """How many of the planned rounds fit."""
        if self.fits(asked, asked.planned):
            return asked.planned
        return most_repeats(lambda rounds: self.fits(asked, rounds), limit=asked.planned)


def bounded_epsilons(
    histories: Mapping[str, History], *, delta: float, method: Method, exact: bool
) -> tuple[dict[str, float], bool]:
    """An upper bound of each history's ε, and whether all are the accountant's own.

    The closed form is quick and PLD is not: of more different sampled histories than it can convert
    in between, each counts with its RDP.
    """
    rows = {name: tuple(history.rows()) for name, history in histories.items()}
    different = {rows[name]: history for name, history in histories.items()}
    slow = sum(not history.is_full for history in different.values())
    own = method not in BOUNDED_BY_RDP or slow <= (MOST_AT_THE_END if exact else MOST_EACH_ROUND)
    by_rows = {
        key: history.epsilon(delta=delta, method=method if own or history.is_full else "rdp")
        for key, history in different.items()
    }
    return {name: by_rows[rows[name]] for name in histories}, own
