"""What a run would spend and how much noise it would take, from public numbers and no training.

The σ, q and T are those of `make_plan`, which a real run uses; here they become ε by round, rounds
within a budget, and the signal that is left beside the noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from dp_fedmed.config import (
    AccountantName,
    Clipping,
    Config,
    PrivacyStyle,
    SamplePrivacyConfig,
    UserPrivacyConfig,
)
from dp_fedmed.data import DataSet, training_parts
from dp_fedmed.federation.plan import ClientPlan, PrivacyPlan
from dp_fedmed.federation.sampling import Sampler
from dp_fedmed.planning.plan import make_plan, make_sampler, round_shape, with_accountant
from dp_fedmed.privacy import History, PrivacyEvent
from dp_fedmed.privacy.accounting.events import Level
from dp_fedmed.privacy.accounting.history import BOUNDED_BY_RDP, Method, most_repeats
from dp_fedmed.privacy.mechanisms.adaptive_clipping import split_noise

#: Sizes of client that a table shows, and PLD accounts, one by one.
MOST_ROWS = 12
CURVE_POINTS = 20


@dataclass(frozen=True, kw_only=True)
class Spending:
    """One event per round, against a target.

    Attributes:
        event: the cost of one round.
        rounds: the most that the unit takes part in and that fit the target.
        delta: at which ε is stated.
        target: ε that may be spent, if there is a limit.
        epsilon: at the end, by each accountant that was asked.
        one_round: ε of a single round alone, by the last of these accountants.
        rounds_within_target: at this σ, however many are planned; None without a target.
        is_upper_bound: whether σ is RDP's, though a tighter accountant calibrates the run.
    """

    event: PrivacyEvent
    rounds: int
    delta: float
    target: float | None
    epsilon: Mapping[str, float]
    one_round: float
    rounds_within_target: int | None
    is_upper_bound: bool = False

    @property
    def sigma(self) -> float:
        """The noise multiplier."""
        return self.event.noise_multiplier

    @property
    def sample_rate(self) -> float:
        """The rate q as it is accounted: 1 where no amplification is claimed."""
        return self.event.key[2]

    @property
    def steps(self) -> int:
        """Noisy steps over all rounds."""
        return self.event.count * self.rounds

    @property
    def whole_event(self) -> PrivacyEvent | None:
        """What all rounds cost together, if there are any."""
        return self.event.times(self.rounds) if self.rounds else None

    def enforced(self, method: Method) -> float:
        """ε by the accountant that enforces; where it was not asked, the largest that is known."""
        return self.epsilon.get(method, max(self.epsilon.values()))


@dataclass(frozen=True, kw_only=True)
class Group:
    """Clients of one size, which share a plan."""

    names: tuple[str, ...]
    plan: ClientPlan
    spending: Spending


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What a run would spend.

    Attributes:
        config: the run's settings.
        records: of each client.
        cohort: expected clients per round.
        rounds: after which the run ends; fewer than asked for where a budget is too small.
        plan: as the run would make it; None in style `none`.
        groups: clients by size, smallest first.
        binding: the group that needs the most noise, or has the largest ε at a given noise.
        client_level: what the federation spends on whole clients.
        curves: ε after some of the rounds, by level.
        curves_by: the accountant of the curves.
    """

    config: Config
    records: Mapping[str, int]
    cohort: float
    rounds: int
    plan: PrivacyPlan | None = None
    groups: tuple[Group, ...] = ()
    binding: Group | None = None
    client_level: Spending | None = None
    curves: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)
    curves_by: Method = "rdp"

    @property
    def method(self) -> Method:
        """The accountant that calibrates and enforces."""
        return self.config.privacy.accountant.value

    @property
    def levels(self) -> dict[str, Spending]:
        """What binds at each protected level, `sample` or `user`."""
        records = None if self.binding is None else self.binding.spending
        found = {Level.sample: records, Level.user: self.client_level}
        return {level: spent for level, spent in found.items() if spent is not None}

    @property
    def record_events(self) -> dict[str, PrivacyEvent]:
        """What the whole run costs the records of each client."""
        return {
            name: event
            for group in self.groups
            if (event := group.spending.whole_event) is not None
            for name in group.names
        }

    @property
    def client_event(self) -> PrivacyEvent | None:
        """What the whole run costs one client."""
        return None if self.client_level is None else self.client_level.whole_event


def simulated_records(config: Config, data: DataSet) -> dict[str, int]:
    """Each simulated client's number of training records, as the client itself would count them."""
    parts = training_parts(config, data)
    return {f"client-{number:05d}": len(part) for number, part in enumerate(parts)}


def forecast(config: Config, records: Mapping[str, int], *, fast: bool = False) -> Forecast:
    """Plan a run of clients with these numbers of records.

    Args:
        config: the run's settings.
        records: by client.
        fast: account by RDP, and by PLD only at the end of the client that binds.

    Raises:
        ConfigError: if a target cannot be met, or clipping cannot adapt with so few clients.
    """
    sampler = make_sampler(config)
    cohort = sampler.expected(config.num_sites)
    rounds = config.federation.num_rounds
    if config.privacy.style is PrivacyStyle.none:
        return Forecast(config=config, records=records, cohort=cohort, rounds=rounds)
    plan, bounded = _planned(config, records, sampler, fast=fast)
    client_level = _client_level(config, plan, cohort, fast=fast)
    if client_level is not None:
        rounds = client_level.rounds
    groups = _groups(config, plan, rounds, bounded, fast=fast)
    made = Forecast(
        config=config,
        records=records,
        cohort=cohort,
        rounds=_rounds_of(config, groups, cohort, rounds),
        plan=plan,
        groups=groups,
        binding=max(groups, key=_need, default=None),
        client_level=client_level,
        curves_by="rdp" if fast else config.privacy.accountant.value,
    )
    curves = {
        level: _curve(spent, made.rounds, made.curves_by) for level, spent in made.levels.items()
    }
    return replace(made, curves=curves)


def _rounds_of(config: Config, groups: Sequence[Group], cohort: float, planned: int) -> int:
    """After how many of the planned rounds records end the run: nobody may take part any more.

    Where cohorts are secret, who has used up its participations ends nothing: only the target can.
    """
    if not groups:
        return planned
    if not config.privacy.style.protects_clients:
        longest = max(group.spending.rounds for group in groups)
        return min(planned, math.ceil(longest * config.num_sites / cohort))
    ends = []
    for group in groups:
        within = group.spending.rounds_within_target
        if within is None or within >= (group.plan.participations or math.inf):
            return planned
        ends.append(within)
    return min(planned, max(ends))


def _planned(
    config: Config, records: Mapping[str, int], sampler: Sampler, *, fast: bool
) -> tuple[PrivacyPlan, set[str]]:
    """The run's plan, and the clients whose σ in it is RDP's upper bound of it."""
    is_private = config.privacy.noise_seed is None

    def made(config: Config, records: Mapping[str, int]) -> PrivacyPlan:
        return make_plan(config, records=records, sampler=sampler, is_private=is_private)

    by_pld = config.privacy.accountant in BOUNDED_BY_RDP
    calibrates = config.privacy.sample.noise_multiplier is None
    records_count = config.privacy.style.protects_records
    sizes = {size for size in records.values() if size > 0 and round_shape(config, size)[0] < 1.0}
    if not (fast and by_pld and calibrates and len(sizes) > 1 and records_count):
        return made(config, records), set()
    rough = made(with_accountant(config, AccountantName.rdp), records)
    needy = max(rough.clients, key=lambda name: rough.clients[name].noise_multiplier)
    exact = made(at_delta(config, rough.delta_sample), {needy: records[needy]})
    like = {name for name, own in rough.clients.items() if own == rough.clients[needy]}
    clients = dict(rough.clients) | dict.fromkeys(like, exact.clients[needy])
    return replace(exact, clients=clients), set(clients) - like


def at_delta(config: Config, delta: float | None) -> Config:
    """The same run with its record-level δ written down, so that it fits fewer clients too."""
    sample = replace(config.privacy.sample, target_delta=delta)
    return config.replace(privacy=replace(config.privacy, sample=sample))


def _client_level(
    config: Config, plan: PrivacyPlan, cohort: float, *, fast: bool
) -> Spending | None:
    event = plan.user_event
    if event is None or plan.delta_user is None:
        return None
    if config.privacy.user.clipping is Clipping.adaptive:
        split_noise(event.noise_multiplier, cohort)
    return _spending(
        config,
        config.privacy.user,
        event,
        rounds=config.federation.num_rounds,
        delta=plan.delta_user,
        fast=fast,
        methods=_methods(config),
    )


def _groups(
    config: Config, plan: PrivacyPlan, rounds: int, bounded: set[str], *, fast: bool
) -> tuple[Group, ...]:
    """Clients by plan, smallest first; PLD only for those that a table has room for."""
    if plan.delta_sample is None:
        return ()
    alike: dict[ClientPlan, list[str]] = {}
    for name, own in plan.clients.items():
        alike.setdefault(own, []).append(name)
    ordered = sorted(alike, key=lambda own: own.records)
    shown = set(ordered if len(ordered) <= MOST_ROWS else (ordered[0], ordered[-1]))
    delta = plan.delta_sample

    def group(own: ClientPlan, methods: Sequence[Method]) -> Group:
        most = rounds if own.participations is None else min(rounds, own.participations)
        spent = _spending(
            config,
            config.privacy.sample,
            own.round_event,
            rounds=most,
            delta=delta,
            fast=fast,
            methods=methods,
        )
        names = tuple(alike[own])
        upper = bool(bounded & set(names))
        return Group(names=names, plan=own, spending=replace(spent, is_upper_bound=upper))

    first = [group(own, ["rdp"]) for own in ordered]
    needy = max(first, key=_need).plan if first else None
    return tuple(
        group(own, _methods(config)) if own == needy or (own in shown and not fast) else known
        for own, known in zip(ordered, first, strict=True)
    )


def _methods(config: Config) -> list[Method]:
    """RDP, and the accountant in force, or PLD, which are tighter and slower."""
    by = config.privacy.accountant.value
    return ["rdp", "pld" if by == "rdp" else by]


def _need(group: Group) -> tuple[float, float]:
    """Who binds: the most noise, and at the same noise the largest ε."""
    return group.spending.sigma, group.spending.epsilon["rdp"]


def _spending(
    config: Config,
    settings: SamplePrivacyConfig | UserPrivacyConfig,
    event: PrivacyEvent,
    *,
    rounds: int,
    delta: float,
    fast: bool,
    methods: Sequence[Method],
) -> Spending:
    """Compose rounds, as many as are planned and fit."""
    target = settings.target_epsilon
    within = None
    if target is not None:
        within = rounds  # by construction, where σ is calibrated for them
        if settings.noise_multiplier is not None:
            by: Method = "rdp" if fast else config.privacy.accountant.value
            within = rounds_within(event, target=target, delta=delta, method=by)
        rounds = min(rounds, within)
    return Spending(
        event=event,
        rounds=rounds,
        delta=delta,
        target=target,
        epsilon={method: _epsilon(event, rounds, delta, method) for method in methods},
        one_round=_epsilon(event, 1, delta, methods[-1]),
        rounds_within_target=within,
    )


def rounds_within(event: PrivacyEvent, *, target: float, delta: float, method: Method) -> int:
    """Most rounds of an event within a target."""
    limit = 10**9 // event.count
    return most_repeats(lambda n: _epsilon(event, n, delta, method) <= target, limit=limit)


def _curve(spent: Spending, rounds: int, method: Method) -> list[tuple[int, float]]:
    """ε after some rounds; a unit that may take part no more stays where it is."""
    count = min(rounds, CURVE_POINTS)
    marks = sorted({max(1, round(rounds * k / count)) for k in range(1, count + 1)})
    return [(at, _epsilon(spent.event, min(at, spent.rounds), spent.delta, method)) for at in marks]


def _epsilon(event: PrivacyEvent, rounds: int, delta: float, method: Method) -> float:
    events = [event.times(rounds)] if rounds else []
    return History(events).epsilon(delta=delta, method=method)


def count_weights(config: Config, data: DataSet) -> int:
    """Numbers in a client's update, to which noise is added; imports torch.

    Raises:
        ConfigError: if the model cannot be built for the data.
    """
    from dp_fedmed.models.build import count_floats

    return count_floats(
        config.model, input_shape=data.input_shape, num_classes=data.num_classes, seed=config.seed
    )
