"""``ExpenditureAccountant``: adds up (ε, δ) pairs whose mechanisms are not known here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from dp_fedmed.privacy import _validate
from dp_fedmed.privacy.accounting.history import compose_advanced, compose_basic

Composition = Literal["basic", "advanced", "best"]
_COMPOSITIONS: Final = ("basic", "advanced", "best")


@dataclass(frozen=True, kw_only=True, slots=True)
class Expenditure:
    """One recorded (ε, δ) pair."""

    epsilon: float
    delta: float
    round_num: int
    description: str = ""


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
        self._target = (
            None if target_epsilon is None else _validate.positive("target_epsilon", target_epsilon)
        )
        self._slack = _validate.delta("slack_delta", slack_delta)
        self._spent: list[Expenditure] = []

    def record_expenditure(
        self, *, epsilon: float, delta: float, round_num: int, description: str = ""
    ) -> None:
        """Record that a release was (ε, δ)-DP; δ = 0 is pure DP."""
        delta = _validate.non_negative("delta", delta)
        if delta >= 1.0:
            raise ValueError(f"delta must be in [0, 1), got {delta!r}")
        if not isinstance(description, str):
            raise TypeError(f"description must be text, got {description!r}")
        self._spent.append(
            Expenditure(
                epsilon=_validate.non_negative("epsilon", epsilon),
                delta=delta,
                round_num=_validate.count("round_num", round_num, minimum=0),
                description=description,
            )
        )

    def get_total_privacy(self, composition: Composition = "best") -> tuple[float, float]:
        """(ε, δ) of everything recorded.

        Args:
            composition: ``basic`` sums; ``advanced`` grows with the square root of the number of
                releases for small ε, and has the kε(e^ε − 1) term; ``best`` is the smaller ε of
                the two, with the δ that belongs to it.
        """
        _validate.choice("composition", composition, _COMPOSITIONS)
        pairs = [(e.epsilon, e.delta) for e in self._spent]
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
        for e in sorted(self._spent, key=lambda spent: spent.round_num):
            by_round.setdefault(f"round_{e.round_num}", []).append(
                {"epsilon": e.epsilon, "delta": e.delta, "description": e.description}
            )
        return {
            "total_epsilon": epsilon,
            "total_delta": delta,
            "num_expenditures": len(self._spent),
            "target_epsilon": self._target,
            "remaining_budget": self.get_remaining_budget(),
            "budget_exceeded": not self.check_budget(),
            "expenditures_by_round": by_round,
        }
