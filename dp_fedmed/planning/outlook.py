"""What follows from a plan: the signal beside the noise, what other budgets allow, cautions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto

from dp_fedmed.config import Config, SamplerName, TaskKind
from dp_fedmed.federation.plan import PrivacyPlan
from dp_fedmed.planning.forecast import Forecast, Spending, rounds_within
from dp_fedmed.privacy import calibrate, compute_noise_multiplier
from dp_fedmed.privacy.accounting.events import Level
from dp_fedmed.privacy.accounting.history import BOUNDED_BY_RDP, Method

OTHER_TARGETS = (0.5, 1.0, 2.0, 4.0, 8.0)
OTHER_NOISES = (0.5, 0.75, 1.0, 1.5, 2.0)
WEAK_EPSILON = 10.0
#: Below this share of the signal-to-noise that full batches would have, budget is wasted.
WASTEFUL = 0.6
#: Below this signal-to-noise of a whole run, noise is what the model mostly consists of.
DROWNED = 0.5


@dataclass(frozen=True, kw_only=True)
class Allowance:
    """What one level's budget allows.

    Attributes:
        rounds: that fit into the target at other noise multipliers; empty without a target.
        sigma: needed for other targets; None where no noise meets one.
        accountant: that says so: the run's, unless it would take too long. RDP allows a little
            less than the others do.
    """

    rounds: Mapping[float, int]
    sigma: Mapping[float, float | None]
    accountant: Method


def allowance(spent: Spending, method: Method) -> Allowance:
    """Other noises for this target, and other targets for these rounds."""
    # PLD has a closed form where everybody takes part, else it is slow.
    if spent.sample_rate < 1.0 and method in BOUNDED_BY_RDP:
        method = "rdp"
    rounds = {}
    if spent.target is not None:
        for sigma in (spent.sigma * factor for factor in OTHER_NOISES):
            event = replace(spent.event, noise_multiplier=sigma)
            rounds[sigma] = rounds_within(
                event, target=spent.target, delta=spent.delta, method=method
            )
    sigmas = {target: _sigma_for(spent, target, method) for target in OTHER_TARGETS}
    return Allowance(rounds=rounds, sigma=sigmas, accountant=method)


def _sigma_for(spent: Spending, target: float, method: Method) -> float | None:
    if spent.rounds == 0:
        return None
    try:
        return calibrate(
            lambda sigma: [replace(spent.event, noise_multiplier=sigma).times(spent.rounds)],
            target_epsilon=target,
            target_delta=spent.delta,
            accountant=method,
        )
    except ValueError:
        return None


@dataclass(frozen=True, kw_only=True)
class Signal:
    """The longest signal that clipping lets through, beside the noise; all are ratios.

    Attributes:
        coordinate: of a step, in one weight in which everything sits.
        norm: of a step, over all weights; None where their number is not known.
        run: the same after all steps, whose signals add up while noises partly cancel.
        efficiency: share of the signal-to-noise that one step with everybody would have for the
            same ε: what small batches or cohorts waste.
    """

    coordinate: float
    norm: float | None
    run: float | None
    efficiency: float | None


def signals(made: Forecast, weights: int | None) -> dict[str, Signal]:
    """The signal beside the noise of each level; anomaly tasks have their own measure."""
    if made.config.task.kind is TaskKind.anomaly:
        return {}
    found: dict[str, Signal] = {}
    if made.binding is not None:
        batch = made.binding.plan.sample_rate * made.binding.plan.records
        # One noise for the sum of all, or one at each client, which the average is over.
        each = 1.0 if made.config.sums_records else made.cohort
        units = batch * made.cohort / each
        found[Level.sample] = _signal(made.binding.spending, units, weights, averaged=each)
    if made.client_level is not None:
        found[Level.user] = _signal(made.client_level, made.cohort, weights)
    return found


def _signal(spent: Spending, units: float, weights: int | None, *, averaged: float = 1.0) -> Signal:
    """Of `units` records per step or clients per round, averaged again over `averaged` clients."""
    coordinate = units / spent.sigma
    norm = None if weights is None else coordinate / math.sqrt(weights)
    run = None if norm is None else norm * math.sqrt(spent.steps * averaged)
    return Signal(coordinate=coordinate, norm=norm, run=run, efficiency=_efficiency(spent))


def _efficiency(spent: Spending) -> float | None:
    """q·√T/σ, over the same of one full step: at most 1, and near it where σ is large."""
    if spent.steps == 0 or spent.sample_rate == 1.0:
        return None if spent.steps == 0 else 1.0
    try:
        alone = compute_noise_multiplier(
            target_epsilon=spent.epsilon["rdp"],
            target_delta=spent.delta,
            sample_rate=1.0,
            steps_per_round=1,
            num_rounds=1,
        )
    except ValueError:
        return None
    return min(1.0, spent.sample_rate * math.sqrt(spent.steps) * alone / spent.sigma)


class Concern(Enum):
    """What may be wrong with a plan, or surprise; the number that a caution has with it."""

    large_delta = auto()  # units of which δ should be below one over
    public_noise = auto()
    no_round_fits = auto()
    budget_ends_run = auto()
    weak_promise = auto()  # ε
    no_amplification = auto()
    participations_run_out = auto()  # participations of a client that the run expects
    every_round_planned = auto()  # share of the clients that a round asks
    wasteful_sampling = auto()  # efficiency
    too_few_units = auto()  # signal in one weight
    drowned = auto()  # signal over the run


@dataclass(frozen=True)
class Caution:
    """A concern, the level that it is about, and its number."""

    concern: Concern
    level: str = ""
    value: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """A forecast with its signals, by level, and what to be cautious of."""

    forecast: Forecast
    signals: Mapping[str, Signal]
    cautions: tuple[Caution, ...]


def outlook(made: Forecast, weights: int | None) -> Outlook:
    """The signals and cautions of a forecast, for a model with that many weights."""
    found = signals(made, weights)
    cautions: list[Caution] = []
    if made.plan is not None:
        cautions += large_deltas(made.config, made.plan, made.records)
        cautions += _about_budget(made)
        cautions += _about_sampling(made)
        for level, signal in found.items():
            cautions += _about_signal(level, signal)
    return Outlook(forecast=made, signals=found, cautions=tuple(cautions))


def large_deltas(
    config: Config, plan: PrivacyPlan, records: Mapping[str, int]
) -> Iterator[Caution]:
    """Every δ that is not below one over the number of units, so would allow to publish one."""
    for level, delta, units in (
        (Level.sample, plan.delta_sample, min(records.values(), default=0)),
        (Level.user, plan.delta_user, config.federation.num_clients),
    ):
        if delta is not None and units and delta >= 1.0 / units:
            yield Caution(Concern.large_delta, level, units)


def _about_budget(made: Forecast) -> Iterator[Caution]:
    if made.config.privacy.noise_seed is not None:
        yield Caution(Concern.public_noise)
    if made.rounds == 0:
        yield Caution(Concern.no_round_fits)
    elif made.rounds < made.config.federation.num_rounds:
        yield Caution(Concern.budget_ends_run)
    for level, spent in made.levels.items():
        epsilon = spent.enforced(made.method)
        if epsilon > WEAK_EPSILON:
            yield Caution(Concern.weak_promise, level, epsilon)


def _about_sampling(made: Forecast) -> Iterator[Caution]:
    federation = made.config.federation
    rate, most = made.cohort / federation.num_clients, federation.max_participations
    is_fixed = federation.sampler is SamplerName.fixed and federation.sample_rate < 1.0
    if made.client_level is not None and is_fixed:
        yield Caution(Concern.no_amplification)
    if made.binding is None:
        return
    if made.client_level is not None:
        if most is not None and most < made.rounds * rate:
            yield Caution(Concern.participations_run_out, value=made.rounds * rate)
    elif rate < 1.0 and most is None:
        yield Caution(Concern.every_round_planned, value=rate)


def _about_signal(level: str, found: Signal) -> Iterator[Caution]:
    if found.efficiency is not None and found.efficiency < WASTEFUL:
        yield Caution(Concern.wasteful_sampling, level, found.efficiency)
    if found.coordinate < 1.0:
        yield Caution(Concern.too_few_units, level, found.coordinate)
    elif found.run is not None and 0.0 < found.run < DROWNED:  # 0: no round fits, as is warned of
        yield Caution(Concern.drowned, level, found.run)
