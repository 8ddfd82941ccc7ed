"""What a run has spent, phase by phase and client by client, and what of that may be shown."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dp_fedmed.federation.charges import Charge
from dp_fedmed.federation.plan import ClientPlan, PrivacyPlan
from dp_fedmed.privacy import History, PrivacyAccountant, PrivacyEvent
from dp_fedmed.privacy.accounting.events import Level, Unit
from dp_fedmed.privacy.accounting.history import Method, Row, most_repeats


class RunAccount:
    """Adds up charges; the record-level ε is the worst of all clients that ever took part.

    Args:
        limits: what may be spent.
        plan: of the phase that begins, or continues.
        past: the plans of earlier phases, by number.
        phase: which one the plan is for.
    """

    def __init__(
        self, limits: Limits, plan: PrivacyPlan, past: Mapping[int, PrivacyPlan], phase: int
    ) -> None:
        self.limits, self.plan, self.phase = limits, plan, phase
        self.accountant: PrivacyAccountant = plan.accountant(
            method=limits.method,
            sample_epsilon=limits.sample_epsilon,
            user_epsilon=limits.user_epsilon,
        )
        self._plans = {**past, phase: plan}
        self._taken: Counter[tuple[int, str]] = Counter()  # charges of a client, by phase
        self._charges: Counter[int] = Counter()  # rounds paid for, by phase
        self._again: Counter[int] = Counter()  # the most that one client paid besides, by phase
        self._before: dict[str | None, History] = {}  # spent in other phases; None: the federation
        self._rounds = RoundBudget(self.accountant.method)

    def record(self, charge: Charge) -> None:
        """Count a charge in."""
        earlier = charge.phase != self.phase
        if charge.federation is not None:
            self.accountant.record(charge.federation)
            if earlier:
                self._before.setdefault(None, History()).add(charge.federation)
        plan, rounds = self._plans[charge.phase], 1
        for name, event in charge.clients.items():
            self.accountant.record(event, name)
            if earlier:
                self._before.setdefault(name, History()).add(event)
            rounds = event.count // plan.clients[name].steps
            self._taken[charge.phase, name] += rounds
        if charge.again:
            self._again[charge.phase] += rounds
        else:
            self._charges[charge.phase] += 1

    def fits(self, name: str | None, rounds: int) -> bool:
        """Whether so many rounds of this phase fit a client's budget, or the federation's."""
        return self._rounds.fits(self._budget(name), rounds)

    def _budget(self, name: str | None) -> Question:
        rounds, plan = self.limits.rounds, self.plan
        before = self._before.get(name, History())
        if name is None and plan.user_event is not None:
            return Question(
                event=plan.user_event,
                before=before,
                target=self.limits.user_epsilon,
                delta=plan.delta_user or 0.0,
                planned=rounds,
            )
        own = plan.clients[name or ""]
        return Question(
            event=own.round_event,
            before=before,
            target=self.limits.sample_epsilon,
            delta=plan.delta_sample or 0.0,
            planned=rounds if own.participations is None else own.participations,
        )

    @property
    def hidden(self) -> bool:
        """Whether who took part is secret."""
        return self.plan.user_event is not None

    def epsilons(self, *, exact: bool = True) -> dict[str, float]:
        """ε so far, by level: realised, so to be kept private where cohorts are secret."""
        names = self.everybody
        realised = {name: self.accountant.history("record", name) for name in names}
        return self._by_level(realised, exact=exact)

    def published_epsilons(self, *, exact: bool = True) -> dict[str, float]:
        """What may be shown: with hidden cohorts, as if every client had taken part each round.

        Args:
            exact: ask PLD however long it takes; else, with many different clients, bounds do.
        """
        return self._by_level(self.published_histories(), exact=exact)

    def _by_level(self, histories: Mapping[str, History], *, exact: bool) -> dict[str, float]:
        spent: dict[str, float] = {}
        if self.plan.clients:
            spent[Level.sample] = max(
                self.client_epsilons(histories, exact=exact).values(), default=0
            )
        if self.plan.user_event is not None:
            spent[Level.user] = self.accountant.get_cumulative_user_epsilon()
        return spent

    def client_epsilons(
        self, histories: Mapping[str, History], *, exact: bool = True
    ) -> dict[str, float]:
        """An upper bound of each client's ε: the accountant's own, where that is quick.

        Where it is not, a client counts with what the planned rounds come to at most, or, if that
        is slow too, with the target that its rounds fit. So ε never falls from round to round.
        """
        method, delta = self.accountant.method, self.plan.delta_sample or 0.0
        found, own = bounded_epsilons(histories, delta=delta, method=method, exact=exact)
        target = self.limits.sample_epsilon
        if own:
            return found
        for name in found.keys() & self.plan.clients.keys():
            if name in self._ends and self._at(name) <= self._budget(name).planned:
                found[name] = min(found[name], self._ends[name])
            elif target is not None and found[name] > target and self.fits(name, self._at(name)):
                found[name] = target
        return found

    @functools.cached_property
    def _ends(self) -> dict[str, float]:
        """Each client's own ε after all planned rounds; empty if there are too many to ask for."""
        ends = {name: History(self._most(name, to_the_end=True)) for name in self.plan.clients}
        method, delta = self.accountant.method, self.plan.delta_sample or 0.0
        found, own = bounded_epsilons(ends, delta=delta, method=method, exact=True)
        target = self.limits.sample_epsilon
        return {n: e for n, e in found.items() if target is None or e <= target} if own else {}

    def _at(self, name: str) -> int:
        """Rounds of this phase that a client counts with at most."""
        return max(self.rounds_shown(name), self._taken[self.phase, name])

    def planned_epsilons(self, rounds: int) -> dict[str, float]:
        """What `epsilons` will be after so many more rounds, in all of which everybody takes part.

        A budget ends a run before it is exceeded; what is spent stays spent.
        """
        planned: dict[str, float] = {}
        spent = self.published_epsilons()
        if self.plan.clients:
            after: dict[tuple[Row, ...], History] = {}
            for name, history in self.published_histories().items():
                own = self.plan.clients.get(name)
                if own is None:
                    continue  # it has left
                left = rounds
                if own.participations is not None:
                    left = max(0, min(rounds, own.participations - self.rounds_shown(name)))
                ends = history.plus(History([own.round_event.times(left)] if left else []))
                after.setdefault(tuple(ends.rows()), ends)
            ends_at = max(self.client_epsilons({str(k): h for k, h in after.items()}).values())
            ends_at = _at_most(ends_at, self.limits.sample_epsilon)
            planned[Level.sample] = max(ends_at, spent[Level.sample])
        event = self.plan.user_event
        if event is not None:
            more = History([event.times(rounds)] if rounds else [])
            history = self.accountant.history("client").plus(more)
            delta = self.plan.delta_user or 0.0
            ends_at = history.epsilon(delta=delta, method=self.accountant.method)
            ends_at = _at_most(ends_at, self.limits.user_epsilon)
            planned[Level.user] = max(ends_at, spent[Level.user])
        return planned

    def epsilon_of_one_round(self, unit: Unit) -> float:
        """ε of a single round of this phase, alone: the worst client's, or the federation's."""
        method = self.accountant.method
        if unit == "client":
            event, delta = self.plan.user_event, self.plan.delta_user or 0.0
            return 0.0 if event is None else History([event]).epsilon(delta=delta, method=method)
        rounds = {name: History([own.round_event]) for name, own in self.plan.clients.items()}
        delta = self.plan.delta_sample or 0.0
        alone, _ = bounded_epsilons(rounds, delta=delta, method=method, exact=False)
        return max(alone.values(), default=0.0)

    @property
    def phases(self) -> int:
        """Phases in which something was spent."""
        return sum(count > 0 for count in self._charges.values())

    @property
    def everybody(self) -> list[str]:
        """The clients of this phase, and those of earlier ones that took part and have left."""
        names = {name for plan in self._plans.values() for name in plan.clients}
        return sorted(n for n in names if n in self.plan.clients or self.all_rounds_shown(n))

    def last_plan(self, name: str) -> ClientPlan:
        """A client's plan in the last phase that it was part of."""
        phases = [p for p, plan in self._plans.items() if name in plan.clients]
        return self._plans[max(phases)].clients[name]

    def published_histories(self) -> dict[str, History]:
        """What each client's records went through, as it may be shown: see `published_epsilons`.

        Also of clients that have left: the guarantee is the worst of all who ever took part.
        """
        names = self.everybody
        if not self.hidden:
            return {name: self.accountant.history("record", name) for name in names}
        made: dict[tuple[PrivacyEvent, ...], History] = {}
        shown = {}
        for name in names:
            events = tuple(self._most(name))
            shown[name] = made.setdefault(events, History(events))
        return shown

    def _most(self, name: str, *, to_the_end: bool = False) -> Iterable[PrivacyEvent]:
        """The most that a client can have spent in each phase, or will have, whoever took part."""
        for phase, plan in sorted(self._plans.items()):
            own: ClientPlan | None = plan.clients.get(name)
            rounds = self.rounds_shown(name, phase)
            if to_the_end and phase == self.phase:
                rounds = self._budget(name).planned
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
        return self._shown_after(name, self._charges[phase], phase)

    def _shown_after(self, name: str, charged: int, phase: int | None = None) -> int:
        """Rounds that a client may have taken part in when so many of a phase are charged."""
        phase = self.phase if phase is None else phase
        most = self._plans[phase].clients[name].participations
        return min(charged, charged if most is None else most) + self._again[phase]

    def all_rounds_shown(self, name: str) -> int:
        """Rounds that a client counts with in public, over all phases."""
        return sum(self.rounds_shown(name, phase) for phase in self._plans)


def _at_most(epsilon: float, target: float | None) -> float:
    return epsilon if target is None else min(epsilon, target)


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

    RDP, which bounds the other accountants, is asked first; then the one in force about the whole
    plan, and only then about a single number of rounds.
    """

    def __init__(self, method: Method) -> None:
        self._methods: dict[Method, None] = {"rdp": None, method: None}
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
    own = method == "rdp" or slow <= (MOST_AT_THE_END if exact else MOST_EACH_ROUND)
    by_rows = {
        key: history.epsilon(delta=delta, method=method if own or history.is_full else "rdp")
        for key, history in different.items()
    }
    return {name: by_rows[rows[name]] for name in histories}, own
