"""Spends a run's privacy budget: charged before a round is dispatched, never given back."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence

from flwr.app import ConfigRecord

from dp_fedmed.config import Config
from dp_fedmed.federation.privacy_plan import PrivacyPlan
from dp_fedmed.privacy import PrivacyAccountant, PrivacyEvent

logger = logging.getLogger(__name__)

REPORTED = ("noise_multiplier", "sample_rate", "steps")


class BudgetSpent(RuntimeError):
    """The next round does not fit into a budget."""


class PrivacyGuard:
    """The accountant of a run, and the rules about who may still take part."""

    def __init__(self, config: Config, plan: PrivacyPlan) -> None:
        self.config, self.plan = config, plan
        self.accountant: PrivacyAccountant = plan.accountant(config)
        self.participations: Counter[str] = Counter()

    def admit(self, cohort: Sequence[str]) -> list[str]:
        """The clients of a cohort whose own budget still has a round left.

        The rule looks at past rounds and public sizes only, never at data.
        """
        if not self.plan.clients:
            return list(cohort)
        return [name for name in cohort if self._may_train(name)]

    def _may_train(self, name: str) -> bool:
        plan = self.plan.clients.get(name)
        if plan is None or self.participations[name] >= plan.participations:
            return False
        return not self.accountant.would_exceed(plan.round_event, name)

    def charge(self, server_round: int, cohort: Sequence[str]) -> None:
        """Charge a round before it is dispatched.

        Raises:
            BudgetSpent: if it does not fit; nothing is charged then.
        """
        event = self.plan.user_event
        if event is not None and self.accountant.would_exceed(event):
            raise BudgetSpent(
                f"budget: round {server_round} would take the client-level ε above "
                f"privacy.user.target_epsilon={self.config.privacy.user.target_epsilon:g}"
            )
        if self.plan.clients and not any(self._may_train(name) for name in self.plan.clients):
            raise BudgetSpent(
                f"budget: before round {server_round} every client has spent its record-level "
                "budget (privacy.sample.target_epsilon, federation.max_participations)"
            )
        if event is not None:
            self.accountant.record(event)
        for name in cohort:
            if name in self.plan.clients:
                self.accountant.record(self.plan.clients[name].round_event, name)
                self.participations[name] += 1

    def told(self, name: str) -> dict[str, float | int | str]:
        """What a client is told to do: σ, q, the steps of a round, and how to compute them."""
        plan = self.plan.clients.get(name)
        if plan is None:
            return {}
        return {
            "noise_multiplier": plan.noise_multiplier,
            "sample_rate": plan.sample_rate,
            "steps": plan.steps,
            "grad_mode": str(self.config.privacy.sample.grad_mode),
        }

    def check_reply(self, name: str, realised: Mapping[str, object] | ConfigRecord | None) -> None:
        """Refuse a reply whose (σ, q, T) is not what the client was told.

        Raises:
            ValueError: naming what differs.
        """
        expected = self.told(name)
        if not expected:
            return
        if realised is None:
            raise ValueError("it did not report its noise_multiplier, sample_rate and steps")
        for key in REPORTED:
            if realised.get(key) != expected[key]:
                raise ValueError(f"it reported {key}={realised.get(key)}, told {expected[key]}")

    def epsilons(self) -> dict[str, float]:
        """ε so far, by level; worst-case planned where the realised one is secret."""
        spent: dict[str, float] = {}
        if self.plan.clients:
            spent["sample"] = self.accountant.get_cumulative_sample_epsilon()
        if self.plan.user_event is not None:
            spent["user"] = self.accountant.get_cumulative_user_epsilon()
        return spent

    def published_epsilons(self, server_round: int) -> dict[str, float]:
        """What may be shown: with hidden cohorts, as if every client had taken part each round."""
        spent = self.epsilons()
        if "sample" in spent and self.config.privacy.style.protects_clients:
            spent["sample"] = self.worst_case_epsilon(server_round)
        return spent

    def worst_case_epsilon(self, rounds: int) -> float:
        """Record-level ε of the worst client, had it taken part in every one of the rounds."""
        accountant = self.plan.accountant(self.config)
        events = {
            plan.round_event.times(min(rounds, plan.participations))
            for plan in self.plan.clients.values()
            if min(rounds, plan.participations) > 0
        }
        for number, event in enumerate(sorted(events, key=lambda e: e.key)):
            accountant.record(event, f"kind-{number}")
        return accountant.get_cumulative_sample_epsilon()

    def rounds_left(self, server_round: int) -> int | None:
        """How many more rounds like this one the budgets hold; None without a budget.

        With hidden cohorts a client counts as if it had taken part in every round.
        """
        left = []
        event: PrivacyEvent | None = self.plan.user_event
        if event is not None and self.config.privacy.user.target_epsilon is not None:
            left.append(self.accountant.remaining_rounds(event))
        if self.plan.clients and self.config.privacy.sample.target_epsilon is not None:
            hidden = self.config.privacy.style.protects_clients
            left.append(
                max(self._client_rounds(n, server_round, hidden) for n in self.plan.clients)
            )
        return min(left) if left else None

    def _client_rounds(self, name: str, server_round: int, hidden: bool) -> int:
        plan = self.plan.clients[name]
        taken = server_round if hidden else self.participations[name]
        if plan.participations <= taken:
            return 0
        if hidden:
            return plan.participations - taken
        allowed = self.accountant.remaining_rounds(plan.round_event, name)
        return min(plan.participations - taken, allowed)
