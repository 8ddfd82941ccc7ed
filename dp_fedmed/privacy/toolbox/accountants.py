"""Accountants for single releases and for training loops of one's own.

``ExpenditureAccountant`` adds up (ε, δ) pairs whose mechanisms are not known here,
``StepAccountant`` counts the steps of one DP-SGD loop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, Literal

from dp_fedmed.privacy import _validate
from dp_fedmed.privacy.accounting.events import PrivacyEvent
from dp_fedmed.privacy.accounting.history import ACCOUNTANTS, History, Method, most_repeats

Composition = Literal["basic", "advanced", "best"]
_COMPOSITIONS: Final = ("basic", "advanced", "best")


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


class ExpenditureAccountant:
    """Composition of recorded (ε, δ) pairs about the same unit.

    Where σ and q are known use ``PrivacyAccountant``: pairs compose far worse than mechanisms.

    Args:
        target_epsilon: Budget; ``None`` for none.
        slack_delta: δ′ that advanced composition may add to the sum of the δ.

    Example:
        >>> accountant = ExpenditureAccountant(target_epsilon=3.0)
        >>> for round_num in range(1, 4):
        ...     accountant.record_expenditure(
        ...         epsilon=0.5, delta=0.0, round_num=round_num, description="histogram")
        >>> accountant.get_total_privacy()
        (1.5, 0.0)
        >>> accountant.check_budget(), accountant.get_remaining_budget()
        (True, 1.5)
        >>> accountant.get_report()["expenditures_by_round"]["round_2"]
        [{'epsilon': 0.5, 'delta': 0.0, 'description': 'histogram'}]
    """

    def __init__(self, target_epsilon: float | None = None, *, slack_delta: float = 1e-6) -> None:
        self._target = _validate.optional_positive("target_epsilon", target_epsilon)
        self._slack = _validate.delta("slack_delta", slack_delta)
        self._spent: list[tuple[int, dict[str, Any]]] = []  # by round

    def record_expenditure(
        self, *, epsilon: float, delta: float, round_num: int, description: str = ""
    ) -> None:
        """Record that a release was (ε, δ)-DP; δ = 0 is pure DP."""
        delta = _validate.non_negative("delta", delta)
        if delta >= 1.0:
            raise ValueError(f"delta must be in [0, 1), got {delta!r}")
        if not isinstance(description, str):
            raise TypeError(f"description must be text, got {description!r}")
        epsilon = _validate.non_negative("epsilon", epsilon)
        round_num = _validate.count("round_num", round_num, minimum=0)
        spent = {"epsilon": epsilon, "delta": delta, "description": description}
        self._spent.append((round_num, spent))

    def get_total_privacy(self, composition: Composition = "best") -> tuple[float, float]:
        """(ε, δ) of everything recorded.

        Args:
            composition: ``basic`` sums; ``advanced`` grows with the square root of the number of
                releases for small ε, and has the kε(e^ε − 1) term; ``best`` is the smaller ε of
                the two, with the δ that belongs to it.
        """
        _validate.choice("composition", composition, _COMPOSITIONS)
        pairs = [(spent["epsilon"], spent["delta"]) for _, spent in self._spent]
        basic = compose_basic(pairs)
        if composition == "basic" or not pairs:
            return basic
        advanced = compose_advanced(pairs, slack_delta=self._slack)
        return advanced if composition == "advanced" or advanced[0] < basic[0] else basic

    def check_budget(self) -> bool:
        """True while the total ε is within the target (always, without one)."""
        return self._target is None or self.get_total_privacy()[0] <= self._target

    def get_remaining_budget(self) -> float | None:
        """Target minus total ε, at least 0; ``None`` without a target."""
        if self._target is None:
            return None
        return max(0.0, self._target - self.get_total_privacy()[0])

    def get_report(self) -> dict[str, Any]:
        """Totals and the expenditures by round, as JSON."""
        epsilon, delta = self.get_total_privacy()
        by_round: dict[str, list[dict[str, Any]]] = {}
        for round_num, spent in sorted(self._spent, key=lambda item: item[0]):
            by_round.setdefault(f"round_{round_num}", []).append(dict(spent))
        return {
            "total_epsilon": epsilon,
            "total_delta": delta,
            "num_expenditures": len(self._spent),
            "target_epsilon": self._target,
            "remaining_budget": self.get_remaining_budget(),
            "budget_exceeded": not self.check_budget(),
            "expenditures_by_round": by_round,
        }


class StepAccountant:
    """ε of repeated Poisson-sampled Gaussian steps with one fixed (σ, q).

    Args:
        noise_multiplier: σ.
        sample_rate: q, each record's chance to be in a batch.
        delta: δ of the guarantee.
        max_epsilon: Budget; ``None`` for none.
        method: one of ``ACCOUNTANTS``: ``rdp``, ``pld``, ``exact``, ``tight``.

    Example:
        >>> accountant = StepAccountant(
        ...     noise_multiplier=1.0, sample_rate=0.01, delta=1e-5, max_epsilon=2.0)
        >>> accountant.step(500)
        >>> round(accountant.get_epsilon(), 2), accountant.is_budget_exceeded()
        (1.65, False)
        >>> accountant.estimate_steps_to_budget()
        381
    """

    def __init__(
        self,
        *,
        noise_multiplier: float,
        sample_rate: float,
        delta: float,
        max_epsilon: float | None = None,
        method: Method = "rdp",
    ) -> None:
        self._step = PrivacyEvent.poisson(
            unit="record", noise_multiplier=noise_multiplier, sample_rate=sample_rate
        )
        self._delta = _validate.delta("delta", delta)
        self._max = _validate.optional_positive("max_epsilon", max_epsilon)
        self._method = _validate.choice("method", method, tuple(ACCOUNTANTS))
        self._steps = 0

    @property
    def steps(self) -> int:
        """Steps taken so far."""
        return self._steps

    @property
    def event(self) -> PrivacyEvent | None:
        """What was spent so far, for a ledger or a ``PrivacyAccountant``; None before step 1."""
        return self._step.times(self._steps) if self._steps else None

    def step(self, num_steps: int = 1) -> None:
        """Count ``num_steps`` more steps."""
        self._steps = _validate.count(
            "the total number of steps", self._steps + _validate.count("num_steps", num_steps)
        )

    def get_epsilon(self, delta: float | None = None) -> float:
        """ε so far, at ``delta`` (by default the accountant's own)."""
        return self._epsilon(self._steps, self._delta if delta is None else delta)

    def _epsilon(self, steps: int, delta: float) -> float:
        events = [self._step.times(steps)] if steps else []
        return History(events).epsilon(delta=delta, method=self._method)

    def is_budget_exceeded(self) -> bool:
        """Whether ε is above ``max_epsilon``; never without a budget."""
        return self._max is not None and self.get_epsilon() > self._max

    def remaining_budget(self) -> float:
        """``max_epsilon`` minus ε, at least 0. ε does not add up linearly: see the next method."""
        return max(0.0, self._budget() - self.get_epsilon())

    def estimate_steps_to_budget(self) -> int:
        """How many more steps keep ε within ``max_epsilon``; 0 when none does."""
        budget = self._budget()
        return most_repeats(lambda n: self._epsilon(self._steps + n, self._delta) <= budget)

    def _budget(self) -> float:
        if self._max is None:
            raise ValueError("no budget was set: pass max_epsilon= to StepAccountant")
        return self._max
