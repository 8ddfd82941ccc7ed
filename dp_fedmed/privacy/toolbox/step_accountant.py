"""``StepAccountant``: one DP-SGD loop, counted in steps, for use inside a training loop."""

from __future__ import annotations

from typing import cast

from dp_fedmed.privacy import _validate
from dp_fedmed.privacy.accounting.events import PrivacyEvent
from dp_fedmed.privacy.accounting.history import METHODS, History, Method, most_repeats


class StepAccountant:
    """ε of repeated Poisson-sampled Gaussian steps with one fixed (σ, q).

    Args:
        noise_multiplier: σ.
        sample_rate: q, each record's chance to be in a batch.
        delta: δ of the guarantee.
        max_epsilon: Budget; ``None`` for none.
        method: ``rdp``, ``pld``, ``exact`` or ``tight``.

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
        self._max = None if max_epsilon is None else _validate.positive("max_epsilon", max_epsilon)
        self._method = cast(Method, _validate.choice("method", method, METHODS))
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
