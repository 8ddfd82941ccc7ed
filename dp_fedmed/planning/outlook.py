"""What a plan's reader should know besides its numbers: warnings, and what other budgets allow."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dp_fedmed.config import Config, PrivacyStyle, SamplerName, TaskKind
from dp_fedmed.config.arithmetic import not_against_server
from dp_fedmed.federation.charges import to_entries
from dp_fedmed.planning.forecast import Forecast, Spending, forecast, rounds_within
from dp_fedmed.planning.plan import delta_warning
from dp_fedmed.privacy import PrivacyEvent, calibrate, compute_noise_multiplier
from dp_fedmed.privacy.accounting.history import Method
from dp_fedmed.privacy.accounting.odds import guess_probability, percent_up
from dp_fedmed.run.data_ledger import DataLedger, RunSpending

OTHER_TARGETS = (0.5, 1.0, 2.0, 4.0, 8.0)
OTHER_NOISES = (0.5, 0.75, 1.0, 1.5, 2.0)
WEAK_EPSILON = 10.0
#: Below this share of the signal-to-noise that full batches would have, a plan says so.
WASTEFUL = 0.6
#: Below this signal-to-noise of a whole run, noise is what the model mostly consists of.
DROWNED = 0.5


@dataclass(frozen=True, kw_only=True)
class Budget:
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


def budget(spent: Spending, method: Method) -> Budget:
    """Other noises for this target, and other targets for these rounds."""
    rounds: dict[float, int] = {}
    if spent.sample_rate < 1.0:  # PLD has a closed form where everybody takes part, else it is slow
        method = "rdp"
    if spent.target is not None:
        for factor in OTHER_NOISES:
            event = replace(spent.event, noise_multiplier=spent.sigma * factor)
            rounds[event.noise_multiplier] = rounds_within(
                event, target=spent.target, delta=spent.delta, method=method
            )
    sigma = {target: _sigma_for(spent, target, method) for target in OTHER_TARGETS}
    return Budget(rounds=rounds, sigma=sigma, accountant=method)


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


def signal(spent: Spending, *, units: float, weights: int | None, averaged: float = 1.0) -> Signal:
    """How much signal a plan leaves.

    Args:
        spent: the plan of one level.
        units: records of a step, or clients of a round, that are expected.
        weights: of the model.
        averaged: clients over which the result is averaged again.
    """
    coordinate = units / spent.sigma
    norm = None if weights is None else coordinate / math.sqrt(weights)
    run = None if norm is None else norm * math.sqrt(spent.steps * averaged)
    return Signal(coordinate=coordinate, norm=norm, run=run, efficiency=_efficiency(spent))


def _efficiency(spent: Spending) -> float | None:
    """q·√T/σ, over the same of one full step: at most 1, and near it where σ is large."""
    epsilon = spent.epsilon["rdp"]
    if spent.steps == 0 or spent.sample_rate == 1.0:
        return None if spent.steps == 0 else 1.0
    try:
        alone = compute_noise_multiplier(
            target_epsilon=epsilon,
            target_delta=spent.delta,
            sample_rate=1.0,
            steps_per_round=1,
            num_rounds=1,
        )
    except ValueError:
        return None
    return min(1.0, spent.sample_rate * math.sqrt(spent.steps) * alone / spent.sigma)


def signals(made: Forecast, weights: int | None) -> dict[str, Signal]:
    """The signal beside the noise of each level; anomaly tasks have their own measure."""
    if made.config.task.kind is TaskKind.anomaly:
        return {}
    found = {}
    if made.binding is not None:
        found["sample"] = signal(
            made.binding.spending,
            units=made.binding.batch,
            weights=weights,
            averaged=made.cohort,
        )
    if made.client_level is not None:
        found["user"] = signal(made.client_level, units=made.cohort, weights=weights)
    return found


def warnings_about(made: Forecast, found: Mapping[str, Signal]) -> list[str]:
    """Sentences, each with what to do about it."""
    if made.plan is None:
        return []
    return [*_delta_warnings(made), *_other_warnings(made, found)]


def warnings_of_run(config: Config, records: Mapping[str, int], weights: int) -> list[str]:
    """What a run should say when it begins, apart from δ, of which its plan has warned."""
    made = forecast(config, records, fast=True)
    return _other_warnings(made, signals(made, weights))


def _other_warnings(made: Forecast, found: Mapping[str, Signal]) -> list[str]:
    return [
        *_budget_warnings(made),
        *_sampling_warnings(made),
        *(line for level, each in found.items() for line in _signal_warnings(made, level, each)),
    ]


def _delta_warnings(made: Forecast) -> list[str]:
    plan = made.plan
    said = []
    if plan is not None and plan.delta_sample is not None:
        smallest = min(made.records.values())
        said.append(
            delta_warning("sample", plan.delta_sample, smallest, "records of the smallest client")
        )
    if plan is not None and plan.delta_user is not None:
        clients = made.config.federation.num_clients
        said.append(delta_warning("user", plan.delta_user, clients, "clients"))
    return [line for line in said if line is not None]


def _budget_warnings(made: Forecast) -> list[str]:
    config, said = made.config, []
    if config.privacy.noise_seed is not None:
        said.append(
            f"privacy.noise_seed={config.privacy.noise_seed} is public, so the noise protects "
            "nobody: leave it null for a real run"
        )
    asked = config.federation.num_rounds
    if made.rounds == 0:
        said.append(
            "not a single round fits the target, so that a run would be refused: give a larger "
            "privacy.*.target_epsilon, or only one of target_epsilon and noise_multiplier"
        )
    elif made.rounds < asked:
        said.append(
            f"the budget ends the run after round {made.rounds} of {asked}: plan "
            f"federation.num_rounds={max(1, made.rounds)}, or leave privacy.*.noise_multiplier "
            "null to have the noise calibrated for all rounds"
        )
    for level, spent in made.levels.items():
        epsilon = spent.epsilon.get(made.method, max(spent.epsilon.values()))
        if epsilon > WEAK_EPSILON:
            said.append(
                f"ε_{level} {epsilon:.3g} is a weak promise: an even guess about one "
                f"{spent.event.unit} may become {odds(epsilon, spent.delta)} sure"
            )
    return said


def odds(epsilon: float, delta: float) -> str:
    """How sure an attacker with even odds can become, as a report says it too.

    >>> odds(1.0, 1e-5)
    '73.2 %'
    """
    return percent_up(guess_probability(epsilon=epsilon, delta=delta))


def _sampling_warnings(made: Forecast) -> list[str]:
    federation, said = made.config.federation, []
    is_fixed = federation.sampler is SamplerName.fixed and federation.sample_rate < 1.0
    if made.client_level is not None and is_fixed:
        said.append(
            "federation.sampler=fixed has no amplification by sampling at client level: "
            "federation.sampler=poisson with the same rate needs less noise"
        )
    most = federation.max_participations
    if made.binding is not None and made.client_level is not None and most is not None:
        expected = made.rounds * made.cohort / federation.num_clients
        if most < expected:
            said.append(
                f"federation.max_participations={most} is used up before the run ends, which "
                f"expects {expected:.3g} of each client: later rounds are then mostly noise, and "
                "do not end the run, since that would tell who took part"
            )
    if made.binding is not None and made.client_level is None:
        rate = made.cohort / federation.num_clients
        if rate < 1.0 and federation.max_participations is None:
            said.append(
                f"a round asks {rate:.0%} of the clients, but each record is planned as if its "
                "client took part in every round: federation.max_participations plans with fewer"
            )
    return said


def _steps(spent: Spending) -> str:
    return "1 step" if spent.steps == 1 else f"all {spent.steps} steps"


def _signal_warnings(made: Forecast, level: str, found: Signal) -> list[str]:
    spent, said = made.levels[level], []
    if found.efficiency is not None and found.efficiency < WASTEFUL:
        key = "training.batch_size" if level == "sample" else "federation.sample_rate"
        what = "batches" if level == "sample" else "cohorts"
        said.append(
            f"{key} wastes budget: with q={spent.sample_rate:.3g} and {_steps(spent)} the run "
            f"has {found.efficiency:.0%} of the signal-to-noise that full {what} would have for "
            "the same ε"
        )
    who = "client" if level == "user" else "record"
    if found.coordinate < 1.0:
        said.append(
            f"{'the cohort' if level == 'user' else 'the batch'} is too small for the noise: even "
            f"in a single weight in which every {who} agrees, a step's signal is "
            f"{found.coordinate:.2g} of the noise"
        )
    elif found.run is not None and found.run < DROWNED:
        whole = "at each client" if spent.sample_rate == 1.0 else "in a batch"
        units = "clients in a round" if level == "user" else f"records {whole}"
        remedy = f"about {1.0 / found.run:.2g} times the {units}, or a model with fewer weights"
        said.append(
            f"noise drowns the {'updates' if level == 'user' else 'gradients'}: after "
            f"{_steps(spent)} the signal is at most {found.run:.2g} of the noise in norm; it "
            f"would take {remedy}"
        )
    return said


def shared_spending(config: Config, made: Forecast) -> dict[str, Any] | None:
    """What all runs have spent on the same data, without and with this one.

    Raises:
        LedgerError: if the shared ledger or its key is damaged, or this run's events do not compose
            with those of others.
    """
    if config.data_ledger is None or made.plan is None:
        return None
    path = Path(config.data_ledger)
    key = path.with_name(f"{path.name}.key")
    if not path.exists() and not key.exists():  # reading must not make one
        return {"data_id": config.data.id, "runs": 0, "before": None, "after": None}
    ledger = DataLedger(path, data_id=config.data.id or "", run="")
    plan = made.plan
    ledger.refuse_other_neighbours(plan.user_event)
    record = plan.delta_sample or plan.delta_user or 1e-5
    client = plan.delta_user or plan.delta_sample or 1e-5
    before = ledger.totals(delta_record=record, delta_client=client)
    after = ledger.totals(delta_record=record, delta_client=client, planned=_as_run(made))
    return {
        "data_id": config.data.id,
        "runs": before["runs"],
        "before": {unit: before[unit] for unit in ("record", "client")},
        "after": {unit: after[unit] for unit in ("record", "client")},
    }


def _as_run(made: Forecast) -> RunSpending:
    """The plan as the shared ledger would count it once it is spent."""
    clients: dict[str, PrivacyEvent] = {}
    for group in made.groups:
        if group.spending.rounds:
            event = group.spending.event.times(group.spending.rounds)
            clients |= dict.fromkeys(group.names, event)
    user = made.client_level
    spent = None if user is None or not user.rounds else user.event.times(user.rounds).to_json()
    planned = RunSpending()
    planned.add({"federation": spent, "clients": to_entries(clients)})
    return planned


def unprotected(config: Config) -> list[str]:
    """What is not promised: by style `none` nothing, and to the server less than to others."""
    if config.privacy.style is not PrivacyStyle.none:
        return [f"{said}." for said in not_against_server(config)]
    return [
        "No guarantee: privacy.style=none adds no noise, and the model may reveal any record.",
        "privacy=sample hides one record of one client (privacy.sample.target_epsilon=3 unless "
        "given).",
        "privacy=user hides one whole client (privacy.user.target_epsilon=8 unless given), and "
        "needs many clients.",
        "privacy=hybrid does both. Plan one with the same settings and privacy=sample instead of "
        "privacy=none.",
    ]
