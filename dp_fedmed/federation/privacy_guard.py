"""Spends a run's privacy budget: charged before a round is dispatched, never given back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from dp_fedmed.errors import BudgetSpent, ConfigError
from dp_fedmed.federation.charges import Charge, RoundJournal, State, StoredRelease
from dp_fedmed.federation.messages import RecordOrder, RoundOrder
from dp_fedmed.federation.plan import PrivacyPlan, Spent
from dp_fedmed.federation.private_log import cohort_logger
from dp_fedmed.federation.run_account import Limits, RunAccount
from dp_fedmed.federation.sampling import Sampler
from dp_fedmed.privacy import PrivacyEvent
from dp_fedmed.privacy.accounting.events import Level
from dp_fedmed.privacy.mechanisms.base import Mechanism, ServerMechanism

MOST_ANSWERS = 16
REPORTED = ("noise_multiplier", "sample_rate", "steps")


@dataclass(frozen=True)
class Expected:
    """What a client's reply must say of its records, wherever it is checked.

    Attributes:
        records: how many the client's plan was made for; None where they are not protected.
        order: what it was ordered to do for them.
    """

    records: int | None = None
    order: RecordOrder | None = None

    def check_examples(self, examples: int) -> None:
        """Refuse a count of records other than the one that the client's plan was made for.

        Raises:
            ValueError: naming both.
        """
        if self.records is not None and self.records != examples:
            raise ValueError(f"it reported num-examples={examples}, its plan is for {self.records}")

    def charges(self, realised: Mapping[str, object] | None) -> int | None:
        """How often a client has paid for the round; None where its records are not protected.

        Raises:
            ValueError: naming what differs from its order, or a count that no honest client has.
        """
        if self.order is None:
            return None
        if realised is None:
            raise ValueError("it did not report its noise_multiplier, sample_rate and steps")
        for key in REPORTED:
            wanted = getattr(self.order, key)
            if realised.get(key) != wanted:
                raise ValueError(f"it reported {key}={realised.get(key)}, told {wanted}")
        charges = realised.get("charges", 1)
        if not isinstance(charges, int) or charges < 1:
            raise ValueError(f"it reported charges={charges!r}, which is not a count")
        if charges > MOST_ANSWERS:
            raise ValueError(f"it says that it has answered {charges} times")
        return charges


class PrivacyGuard(RunAccount):
    """The account of a run, and the rules about who may still take part.

    Args:
        limits: what may be spent.
        plan: of the phase that begins, or continues.
        journal: writes charges down; None where nothing needs to outlast the process.
        past: the plans of earlier phases, by number.
        phase: which one the plan is for, if not the journal's.
        grad_mode: how clients are to compute the gradients of single records.
    """

    def __init__(
        self,
        limits: Limits,
        plan: PrivacyPlan,
        journal: RoundJournal | None = None,
        past: Mapping[int, PrivacyPlan] | None = None,
        phase: int | None = None,
        grad_mode: str = "auto",
    ) -> None:
        number = phase if phase is not None else (journal.phase if journal is not None else 0)
        super().__init__(limits, plan, past or {}, number)
        self.journal, self.grad_mode = journal, grad_mode
        self.stored: StoredRelease | None = None  # of the open round, if it was released before
        if journal is not None and self.hidden:
            journal.worst_case = {
                number: {name: own.round_event for name, own in each.clients.items()}
                for number, each in self._plans.items()
            }
        for charge in journal.charges if journal is not None else ():
            self.record(charge)

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
        self.stored = None
        known = self.journal.find(server_round, digest.hex()) if self.journal is not None else None
        if known is not None and self.journal is not None:
            self.stored = self.journal.stored()
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
        return self._next_fits(name)

    def _next_fits(self, name: str) -> bool:
        """Whether one more round fits a client's budget, as far as that may be shown."""
        if not self.hidden:
            return self.fits(name, self._taken[self.phase, name] + 1)
        return self.fits(name, self._shown_after(name, self._charges[self.phase] + 1))

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
        if self.plan.user_event is not None and not self.fits(None, self._charges[self.phase] + 1):
            raise BudgetSpent(
                f"budget: round {server_round} would take the client-level ε above "
                f"privacy.user.target_epsilon={self.limits.user_epsilon:g}"
            )
        # Who has used up its participations is a secret where cohorts are: it must not end the run.
        goes_on = self._next_fits if self.hidden else self._may_train
        if self.plan.clients and not any(goes_on(name) for name in self.plan.clients):
            raise BudgetSpent(
                f"budget: before round {server_round} every client has spent its record-level "
                "budget (privacy.sample.target_epsilon, federation.max_participations)"
            )

    def require_one_round(self) -> None:
        """Refuse a phase of which not a single round fits: it would end before it begins.

        Raises:
            ConfigError: naming the target, and one that works.
        """
        levels: list[tuple[str, list[str | None]]] = []
        if self.plan.user_event is not None:
            levels.append((Level.user, [None]))
        if self.plan.clients:
            levels.append((Level.sample, list(self.plan.clients)))
        for level, names in levels:
            if any(self.fits(name, 1) for name in names):
                continue
            asked = [self._budget(name) for name in names]
            needed = min(each.epsilon_of(1, self.accountant.method) for each in asked)
            key = f"privacy.{level}"
            raise ConfigError(
                f"{key}.target_epsilon={asked[0].target:g} does not hold a single round with {key}."
                f"noise_multiplier={asked[0].event.noise_multiplier:g}, which takes ε to "
                f"{needed:.4g}: leave the noise to be calibrated ({key}.noise_multiplier=null), or "
                f"give no target ({key}.target_epsilon=null) or a larger one"
            )

    def refuse_other_cost(self, sampler: Sampler, mechanism: Mechanism, population: int) -> None:
        """Refuse a sampler or a mechanism other than those that a round is charged for.

        Raises:
            ConfigError: naming all three.
        """
        charged = self.plan.user_event
        if charged is None:
            return
        drawn = sampler.event(
            noise_multiplier=charged.noise_multiplier,
            population=population,
            is_private=charged.is_private,
        )
        stated = list(mechanism.cost(1))
        if _accounted(drawn) != _accounted(charged) or stated != [charged]:
            raise ConfigError(
                f"the ledger charges {charged}, the sampler draws {drawn}, and the mechanism "
                f"states {stated}: make the mechanism of sampler.event(...), and give it to both"
            )

    def pay_client(self, name: str, charges: int) -> None:
        """A client says how often it has paid for this round; what is missing is charged here.

        It answered anew where its earlier answer could not be repeated: both are releases, so this
        is written down whether or not it fits the budget; the next round is then refused.
        """
        journal = self.journal
        if journal is None or journal.current is None:
            return
        now, missing = journal.current, charges - journal.client_charges(name)
        if missing <= 0:
            return
        cohort_logger.warning(
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
        self.record(charge)  # first: what cannot be composed must not be written down
        return self.journal.charge(charge) if self.journal is not None else charge

    def release(self, inputs: str, average: State, state: Mapping[str, float]) -> None:
        """Make a noised average durable before anybody uses it."""
        if self.journal is not None:
            self.journal.release(inputs, average, state)

    @property
    def ledger_length(self) -> int:
        """Records in the run's ledger; a client's answer depends on it only growing."""
        return 0 if self.journal is None else self.journal.length

    def order(self, name: str) -> RecordOrder | None:
        """What a client is to do for its records; None where they are not protected."""
        plan = self.plan.clients.get(name)
        if plan is None:
            return None
        return RecordOrder(
            noise_multiplier=plan.noise_multiplier,
            sample_rate=plan.sample_rate,
            steps=plan.steps,
            grad_mode=self.grad_mode,
        )

    def complete(
        self, order: RoundOrder, name: str, mechanism: ServerMechanism | None
    ) -> RoundOrder:
        """What a client is sent in a round, with the noise that it is to draw itself."""
        order = replace(order, records=self.order(name))
        if mechanism is None or mechanism.noised_by == "server":
            return order
        clients = self.plan.user_event
        sigma = None if clients is None else clients.noise_multiplier
        return replace(order, noise_std=mechanism.std, client_noise=sigma)

    def expected(self, name: str) -> Expected:
        """What a client's reply must say, as plain values."""
        plan = self.plan.clients.get(name)
        return Expected() if plan is None else Expected(plan.records, self.order(name))

    def check_examples(self, name: str, examples: int) -> None:
        """Refuse a count of records other than the one that the client's plan was made for.

        Raises:
            ValueError: naming both.
        """
        self.expected(name).check_examples(examples)

    def check_reply(self, name: str, realised: Mapping[str, object] | None) -> None:
        """Refuse a reply whose (σ, q, T) is not what the client was ordered; pay for the others.

        Raises:
            ValueError: naming what differs.
        """
        charges = self.expected(name).charges(realised)
        if charges is not None:
            self.pay_client(name, charges)

    def spent(self, rounds: int) -> Spent:
        """What a new phase must count in: as it may be shown, so that no σ tells who took part."""
        return Spent(
            rounds=rounds,
            clients=self.published_histories() if self.plan.clients else {},
            participations={name: self.all_rounds_shown(name) for name in self.everybody},
            federation=self.accountant.history("client"),
        )

    def rounds_left(self) -> int | None:
        """How many of the planned rounds the budgets still hold; None without a budget."""
        left = []
        if self.plan.user_event is not None and self.limits.user_epsilon is not None:
            left.append(self._rounds.most(self._budget(None)) - self._charges[self.phase])
        if self.plan.clients and self.limits.sample_epsilon is not None:
            own = [each for name in self.plan.clients if (each := self._own_left(name)) is not None]
            left += [max(own)] if len(own) == len(self.plan.clients) else []
        return max(0, min(left)) if left else None

    def _own_left(self, name: str) -> int | None:
        """Rounds that one client's records have left; None where they never end the run."""
        within = self._rounds.most(self._budget(name))
        if not self.hidden:
            return within - self._taken[self.phase, name]
        again, most = self._again[self.phase], self.plan.clients[name].participations
        if most is not None and most + again <= within:
            return None
        return within - again - self._charges[self.phase]


def _accounted(event: PrivacyEvent) -> tuple[object, ...]:
    """What ε is made of: without amplification, the size of a fixed cohort is no part of it."""
    return event.unit, event.adjacency, event.sampling, event.key, event.is_private
