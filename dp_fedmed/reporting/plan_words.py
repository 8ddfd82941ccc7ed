"""A plan in sentences: what to be cautious of, what to change, and what is not promised."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dp_fedmed.config import Config, PrivacyStyle
from dp_fedmed.config.arithmetic import not_against_server
from dp_fedmed.federation.plan import PrivacyPlan
from dp_fedmed.federation.sampling import Sampler
from dp_fedmed.planning.forecast import Spending, forecast
from dp_fedmed.planning.outlook import Caution, Concern, Outlook, large_deltas, outlook
from dp_fedmed.planning.plan import default_delta, largest_sigma, noise_of
from dp_fedmed.planning.suggestions import LEAST, Suggestion
from dp_fedmed.privacy.accounting.events import Level
from dp_fedmed.privacy.mechanisms.noisy_rows import NoisyRows
from dp_fedmed.reporting.words import LEVELS, odds

if TYPE_CHECKING:
    from dp_fedmed.learning import AnomalyLearner

NO_PRIVACY = (
    "No guarantee: privacy.style=none adds no noise, and the model may reveal any record.",
    "privacy=sample hides one record of one client (privacy.sample.target_epsilon=3 unless given).",
    "privacy=user hides one whole client (privacy.user.target_epsilon=8 unless given), and needs "
    "many clients.",
    "privacy=hybrid does both. Plan one with the same settings and privacy=sample instead of "
    "privacy=none.",
)


def warnings(made: Outlook) -> list[str]:
    """Every caution in a sentence, with what to do about it."""
    return [_sentence(made, caution) for caution in made.cautions]


def warnings_of_run(config: Config, records: Mapping[str, int], weights: int) -> list[str]:
    """What a run warns of when it begins, apart from `delta_warnings`."""
    made = outlook(forecast(config, records, fast=True), weights)
    cautions = (each for each in made.cautions if each.concern is not Concern.large_delta)
    return [_sentence(made, caution) for caution in cautions]


def delta_warnings(config: Config, plan: PrivacyPlan, records: Mapping[str, int]) -> list[str]:
    """A sentence on every δ of a plan that is not below one over the number of units."""
    deltas = {Level.sample: plan.delta_sample, Level.user: plan.delta_user}
    return [
        _about_delta(caution, deltas[Level(caution.level)] or 0.0)
        for caution in large_deltas(config, plan, records)
    ]


def _sentence(said: Outlook, caution: Caution) -> str:
    made, value = said.forecast, caution.value
    privacy, federation = made.config.privacy, made.config.federation
    match caution.concern:
        case Concern.large_delta:
            return _about_delta(caution, made.levels[caution.level].delta)
        case Concern.public_noise:
            return (
                f"privacy.noise_seed={privacy.noise_seed} is public, so the noise protects nobody: "
                "leave it null for a real run"
            )
        case Concern.no_round_fits:
            return (
                "not a single round fits the target, so that a run would be refused: give a larger "
                "privacy.*.target_epsilon, or only one of target_epsilon and noise_multiplier"
            )
        case Concern.budget_ends_run:
            return (
                f"the budget ends the run after round {made.rounds} of {federation.num_rounds}: "
                f"plan federation.num_rounds={made.rounds}, or leave privacy.*.noise_multiplier "
                "null to have the noise calibrated for all rounds"
            )
        case Concern.weak_promise:
            spent = made.levels[caution.level]
            return (
                f"ε_{caution.level} {value:.3g} is a weak promise: an even guess about one "
                f"{spent.event.unit} may become {odds(value, spent.delta)} sure"
            )
        case Concern.no_amplification:
            return (
                "federation.sampler=fixed has no amplification by sampling at client level: "
                "federation.sampler=poisson with the same rate needs less noise"
            )
        case Concern.participations_run_out:
            return (
                f"federation.max_participations={federation.max_participations} is used up before "
                f"the run ends, which expects {value:.3g} of each client: later rounds are then "
                "mostly noise, and do not end the run, since that would tell who took part"
            )
        case Concern.every_round_planned:
            return (
                f"a round asks {value:.0%} of the clients, but each record is planned as if its "
                "client took part in every round: federation.max_participations plans with fewer"
            )
        case _:
            return _about_signal(made.levels[caution.level], caution)


def _about_delta(caution: Caution, delta: float) -> str:
    units, of_records = int(caution.value), caution.level == Level.sample
    what = "records of the smallest client" if of_records else "clients"
    return (
        f"privacy.{caution.level}.target_delta={delta:g} is not below 1/{units} ({what}): it would "
        f"allow to publish one of them in full; use {default_delta(units):.1g} or less"
    )


def _about_signal(spent: Spending, caution: Caution) -> str:
    value, of_clients = caution.value, caution.level == Level.user
    steps = "1 step" if spent.steps == 1 else f"all {spent.steps} steps"
    if caution.concern is Concern.wasteful_sampling:
        key = "federation.sample_rate" if of_clients else "training.batch_size"
        return (
            f"{key} wastes budget: with q={spent.sample_rate:.3g} and {steps} the run has "
            f"{value:.0%} of the signal-to-noise that full {'cohorts' if of_clients else 'batches'}"
            " would have for the same ε"
        )
    if caution.concern is Concern.too_few_units:
        return (
            f"the {'cohort' if of_clients else 'batch'} is too small for the noise: even in a "
            f"single weight in which every {LEVELS[caution.level]} agrees, a step's signal is "
            f"{value:.2g} of the noise"
        )
    whole = "at each client" if spent.sample_rate == 1.0 else "in a batch"
    units = "clients per round" if of_clients else f"records {whole}"
    return (
        f"noise drowns the {'updates' if of_clients else 'gradients'}: after {steps} the signal is "
        f"at most {value:.2g} of the noise in norm; it would take about {1.0 / value:.2g} times "
        f"the {units}, or a model with fewer weights"
    )


def anomaly_advice(
    config: Config, learner: AnomalyLearner, plan: PrivacyPlan, sampler: Sampler
) -> str | None:
    """How many images or clients it would take, if a release would be mostly noise."""
    if config.releases_rows:
        rows = NoisyRows(
            noise_multiplier=largest_sigma(plan.clients),
            rows_per_record=config.anomaly.rows_per_image,
        )
        length = rows.std * learner.dimension**0.5
        return (
            "anomaly.mechanism=noisy_rows is weak, and kept for comparison: rows do not add up, so "
            f"each bears all the noise, here of length {length:.3g} on a row of length 1, however "
            "many images there are; use anomaly.mechanism=dp_gaussian to find anomalies"
        )
    noise_std, units = noise_of(config, plan, sampler)
    needed = learner.units_needed(noise_std * units)
    if needed <= units:
        return None
    what = "clients" if config.privacy.style.protects_clients else "images"
    return (
        f"anomaly.mechanism={config.anomaly.mechanism} in {learner.dimension} dimensions with "
        f"noise of {noise_std * units:.3g} on the sum needs about {needed} {what} to say more "
        f"than noise, and a round has {units:.0f}: use more {what}, a larger target_epsilon, "
        f"or anomaly.dimension={max(1, int(learner.dimension * units / needed))}"
    )


def suggestion_text(found: Suggestion) -> str:
    """What a change does, on one line."""
    change, noise = _percent(*found.sigma), _percent(*found.noise)
    effects = []
    if found.sigma[0] != found.sigma[1]:
        effects.append(f"σ {found.sigma[0]:.3g} → {found.sigma[1]:.3g} ({change})")
    if noise != change:
        what = "gradient" if found.level == Level.sample else "update"
        effects.append(f"noise in an averaged {what} {noise}")
    if found.steps[0] != found.steps[1]:
        plural = "" if found.steps[1] == 1 else "s"
        effects.append(f"{found.steps[1]} step{plural} instead of {found.steps[0]}")
    if abs(found.run - 1.0) >= LEAST:
        effects.append(f"signal-to-noise over the run {_percent(1.0, found.run)}")
    before = "" if found.before is None else f" (now {_shown(found.before)})"
    return f"{found.key}={_shown(found.after)}{before}: {', '.join(effects)}"


def suggestion_json(found: Suggestion) -> dict[str, Any]:
    """A change for `--json`."""
    return {
        "override": f"{found.key}={_shown(found.after)}",
        "before": None if found.before is None else _shown(found.before),
        "level": found.level,
        "noise_multiplier": list(found.sigma),
        "noise_in_average": list(found.noise),
        "steps": list(found.steps),
        "run_signal_to_noise_ratio": found.run,
        "accountant": found.accountant,
        "text": suggestion_text(found),
    }


def _percent(before: float, after: float) -> str:
    return f"{100.0 * (after / before - 1.0):+.0f} %".replace("-", "−")


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def unprotected(config: Config) -> list[str]:
    """What is not promised: by style `none` nothing, and to the server less than to others."""
    if config.privacy.style is PrivacyStyle.none:
        return list(NO_PRIVACY)
    return [f"{said}." for said in not_against_server(config)]
