"""Spends a run's privacy budget: charged before a round is dispatched, never given back."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from flwr.app import ConfigRecord

from dp_fedmed.config import Config
from dp_fedmed.federation.journal import Charge, Journal
from dp_fedmed.federation.privacy_plan import ClientPlan, PrivacyPlan, Spent
from dp_fedmed.privacy import History, PrivacyAccountant, PrivacyEvent
from dp_fedmed.privacy.composition import Row, worst_epsilon

private_logger = logging.getLogger("dp_fedmed.private")  # lines that tell who took part

MOST_ANSWERS = 16
REPORTED = ("noise_multiplier", "sample_rate", "steps")


class BudgetSpent(RuntimeError):
    """The next round does not fit into a budget."""


class PrivacyGuard:
    """The accountant of a run, and the rules about who may still take part.

    Args:
        config: the run's configuration.
        plan: of the phase that begins, or goes on.
        journal: writes charges down; None where nothing needs to outlast the process.
        past: the plans of earlier phases, by number.
        phase: which one the plan is for, if not the journal's.
    """

    def __init__(
        self,
        config: Config,
        plan: PrivacyPlan,
        journal: Journal | None = None,
        past: Mapping[int, PrivacyPlan] | None = None,
        phase: int | None = None,
    ) -> None:
        self.config, self.plan, self.journal = config, plan, journal
        self.accountant: PrivacyAccountant = plan.accountant(config)
        self._taken: Counter[tuple[int, str]] = Counter()  # charges of a client, by phase
        self.phase = phase if phase is not None else (journal.phase if journal is not None else 0)
        self._plans = {**(past or {}), self.phase: plan}
        self._charges: Counter[int] = Counter()  # rounds paid for, by phase
        self._again: Counter[int] = Counter()  # the most that one client paid besides, by phase
        if journal is not None and self.hidden:
            journal.worst_case = {
                number: {name: own.round_event for name, own in each.clients.items()}
                for number, each in self._plans.items()
            }
        for charge in journal.charges if journal is not None else ():
            self._record(charge)

    def open_round(
        self, server_round: int, digest: bytes, draw: Callable[[], Sequence[str]]
    ) -> list[str]:
        """Who takes part in a round, charged unless this very round was charged before.

        Args:
            server_round: the round.
            digest: of the model and the settings in force.
            draw: draws the cohort, for a round that is new.

        Raises:
            BudgetSpent: if it does not fit; nothing is charged then.
        """
        known = self.journal.find(server_round, digest.hex()) if self.journal is not None else None
        if known is not None:
            return list(known.cohort)
        cohort = self.admit(draw())
        self.charge(server_round, cohort, digest)
        return cohort

    def admit(self, cohort: Sequence[str]) -> list[str]:
        """The clients of a cohort whose own budget still has a round left.

        The rule looks at past rounds and public sizes only, never at data.
        """
        if not self.plan.clients:
            return list(cohort)
        return [name for name in cohort if self._may_train(name)]

    def _may_train(self, name: str) -> bool:
        plan = self.plan.clients.get(name)
        if plan is None:
            return False
        most = plan.participations
        if most is not None and self._taken[self.phase, name] >= most:
            return False
        return not self.accountant.would_exceed(plan.round_event, name)

    def charge(self, server_round: int, cohort: Sequence[str], digest: bytes = b"") -> None:
        """Charge a round before it is dispatched.

        Raises:
            BudgetSpent: if it does not fit; nothing is charged then.
        """
        self._require_budget(server_round)
        charged = {n: self.plan.clients[n].round_event for n in cohort if n in self.plan.clients}
        self._write(
            Charge(
                phase=self.phase,
                server_round=server_round,
                digest=digest.hex(),
                cohort=list(cohort),
                federation=self.plan.user_event,
                clients=charged,
            )
        )

    def _require_budget(self, server_round: int) -> None:
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

    def pay_client(self, name: str, charges: int) -> None:
        """A client says how often it has paid for this round; what is missing is charged here.

        It answered anew where its earlier answer could not be repeated: both are releases, so this
        is written down whether or not it fits the budget; the next round is then refused.

        Raises:
            ValueError: for a number that no honest client comes to.
        """
        if charges > MOST_ANSWERS:
            raise ValueError(f"it says that it has answered {charges} times")
        journal = self.journal
        if journal is None or journal.current is None:
            return
        now, missing = journal.current, charges - journal.client_charges(name)
        if missing <= 0:
            return
        private_logger.warning(
            "round %d: %s has answered again, which is charged again", now.server_round, name
        )
        event = self.plan.clients[name].round_event.times(missing)
        again = Charge(
            phase=now.phase,
            server_round=now.server_round,
            digest=now.digest,
            cohort=[],
            clients={name: event},
            again=True,
        )
        self._write(again)

    def _write(self, charge: Charge) -> Charge:
        self._record(charge)  # first: what cannot be composed must not be written down
        return self.journal.charge(charge) if self.journal is not None else charge

    def _record(self, charge: Charge) -> None:
        if charge.federation is not None:
            self.accountant.record(charge.federation)
        plan, rounds = self._plans[charge.phase], 1
        for name, event in charge.clients.items():
            self.accountant.record(event, name)
            rounds = event.count // plan.clients[name].steps
            self._taken[charge.phase, name] += rounds
        if charge.again:
            self._again[charge.phase] += rounds
        else:
            self._charges[charge.phase] += 1

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

    def check_examples(self, name: str, examples: int) -> None:
        """Refuse a count of records other than the one that the client's plan was made for.

        Raises:
            ValueError: naming both.
        """
        plan = self.plan.clients.get(name)
        if plan is not None and plan.records != examples:
            raise ValueError(f"it reported num-examples={examples}, its plan is for {plan.records}")

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
        charges = realised.get("charges", 1)
        if not isinstance(charges, int) or charges < 1:
            raise ValueError(f"it reported charges={charges!r}, which is not a count")
        self.pay_client(name, charges)

    @property
    def hidden(self) -> bool:
        """Whether who took part is secret."""
        return self.config.privacy.style.protects_clients

    def epsilons(self) -> dict[str, float]:
        """ε so far, by level: realised, so to be kept private where cohorts are secret."""
        spent: dict[str, float] = {}
        if self.plan.clients:
            spent["sample"] = self.accountant.get_cumulative_sample_epsilon()
        if self.plan.user_event is not None:
            spent["user"] = self.accountant.get_cumulative_user_epsilon()
        return spent

    def published_epsilons(self) -> dict[str, float]:
        """What may be shown: with hidden cohorts, as if every client had taken part each round."""
        spent = self.epsilons()
        if "sample" in spent and self.hidden:
            spent["sample"] = worst_epsilon(
                set(self.published_histories().values()),
                delta=self.plan.delta_sample or 0.0,
                method=self.accountant.method,
            )
        return spent

    def planned_epsilons(self, rounds: int) -> dict[str, float]:
        """What `epsilons` will be after so many more rounds, in all of which everybody takes part.

        A budget ends a run before it is exceeded.
        """
        planned: dict[str, float] = {}
        if self.plan.clients:
            after: dict[tuple[Row, ...], History] = {}
            for name, history in self.published_histories().items():
                own = self.plan.clients[name]
                left = rounds
                if own.participations is not None:
                    left = max(0, min(rounds, own.participations - self.rounds_shown(name)))
                ends = history.plus(History([own.round_event.times(left)] if left else []))
                after.setdefault(tuple(ends.rows()), ends)
            delta = self.plan.delta_sample or 0.0
            spent = worst_epsilon(after.values(), delta=delta, method=self.accountant.method)
            planned["sample"] = _at_most(spent, self.config.privacy.sample.target_epsilon)
        event = self.plan.user_event
        if event is not None:
            more = History([event.times(rounds)] if rounds else [])
            history = self.accountant.history("client").plus(more)
            delta = self.plan.delta_user or 0.0
            spent = history.epsilon(delta=delta, method=self.accountant.method)
            planned["user"] = _at_most(spent, self.config.privacy.user.target_epsilon)
        return planned

    def published_histories(self) -> dict[str, History]:
        """What each client's records went through, as it may be shown: see `published_epsilons`."""
        if not self.hidden:
            return {name: self.accountant.history("record", name) for name in self.plan.clients}
        made: dict[tuple[PrivacyEvent, ...], History] = {}
        shown = {}
        for name in self.plan.clients:
            events = tuple(self._most(name))
            shown[name] = made.setdefault(events, History(events))
        return shown

    def _most(self, name: str) -> Iterable[PrivacyEvent]:
        """The most that a client can have spent in each phase, whoever took part."""
        for phase, plan in sorted(self._plans.items()):
            own: ClientPlan | None = plan.clients.get(name)
            rounds = self.rounds_shown(name, phase)
            if own is not None and rounds > 0:
                yield own.round_event.times(rounds)

    def rounds_shown(self, name: str, phase: int | None = None) -> int:
        """Rounds of a phase that a client counts with in public."""
        phase = self.phase if phase is None else phase
        plan = self._plans[phase].clients.get(name)
        if plan is None:
            return 0
        if not self.hidden:
            return self._taken[phase, name]
        charged = self._charges[phase]
        most = charged if plan.participations is None else plan.participations
        return min(charged, most) + self._again[phase]

    def all_rounds_shown(self, name: str) -> int:
        """Rounds that a client counts with in public, over all phases."""
        return sum(self.rounds_shown(name, phase) for phase in self._plans)

    def spent(self, rounds: int) -> Spent:
        """What a new phase must count in: as it may be shown, so that no σ tells who took part."""
        return Spent(
            rounds=rounds,
            clients=self.published_histories() if self.plan.clients else {},
            participations={name: self.all_rounds_shown(name) for name in self.plan.clients},
            federation=self.accountant.history("client"),
        )

    def rounds_left(self) -> int | None:
        """How many more rounds like this one the budgets hold; None without a budget.

        With hidden cohorts a client counts as if it had taken part in every round.
        """
        left = []
        event: PrivacyEvent | None = self.plan.user_event
        if event is not None and self.config.privacy.user.target_epsilon is not None:
            left.append(self.accountant.remaining_rounds(event))
        if self.plan.clients and self.config.privacy.sample.target_epsilon is not None:
            left.append(max(self._client_rounds(name) for name in self.plan.clients))
        return min(left) if left else None

    def _client_rounds(self, name: str) -> int:
        plan = self.plan.clients[name]
        allowed = self.accountant.remaining_rounds(plan.round_event, name)
        if plan.participations is None:
            return allowed
        left = plan.participations - self.rounds_shown(name)
        return max(0, left) if self.hidden else max(0, min(left, allowed))


def _at_most(epsilon: float, target: float | None) -> float:
    return epsilon if target is None else min(epsilon, target)
