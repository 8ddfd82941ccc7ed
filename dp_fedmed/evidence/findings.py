"""What is audited, and what an audit found about it: the bound, a verdict and a sentence."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dp_fedmed.config import Clipping, Config, PrivacyStyle
from dp_fedmed.data import load_data
from dp_fedmed.errors import ConfigError
from dp_fedmed.federation.plan import ClientPlan, PrivacyPlan
from dp_fedmed.planning.forecast import simulated_records
from dp_fedmed.planning.plan import make_plan, make_sampler
from dp_fedmed.privacy import History, PrivacyEvent
from dp_fedmed.privacy.mechanisms.adaptive_clipping import split_noise
from dp_fedmed.reporting.plan_words import delta_warnings

logger = logging.getLogger(__name__)

Unit = Literal["record", "client"]
Floats = NDArray[np.float64]
Coins = NDArray[np.bool_]

QUIET = 1e-2  # the least σ that a configuration may have
UNITS = {"record": "one record of one site", "client": "one whole client"}


@dataclass(frozen=True, kw_only=True)
class AuditTarget:
    """What is audited: one unit's guarantee, as the configuration's own plan has it."""

    unit: Unit
    noise_multiplier: float  # σ of a step
    sample_rate: float  # q of a step
    steps: int  # T, over all rounds
    rounds: int
    clip_norm: float
    delta: float
    adjacency: str
    event: PrivacyEvent  # what the whole run is charged with
    other_sigma: float | None = None  # of the other unit, in style hybrid


def targets(config: Config) -> list[AuditTarget]:
    """The guarantees of a configuration, from the plan that a run of it would make.

    Raises:
        ConfigError: for a configuration that promises nothing, or nothing that canaries can test.
    """
    if config.privacy.style is PrivacyStyle.none:
        raise ConfigError(
            "privacy.style=none claims nothing, so there is nothing to audit: choose "
            "privacy=sample, privacy=user or privacy=hybrid"
        )
    sampler = make_sampler(config)
    private = config.privacy.noise_seed is None
    records = {}
    if config.privacy.style.protects_records:
        records = simulated_records(config, load_data(config.data, seed=config.seed))
    plan = make_plan(config, records=records, sampler=sampler, is_private=private)
    for said in delta_warnings(config, plan, records):
        logger.warning("%s", said)
    user, num_rounds = plan.user_event, config.federation.num_rounds
    found = []
    if plan.clients:
        worst, rounds = _worst_client(config, plan)
        found.append(
            AuditTarget(
                unit="record",
                noise_multiplier=worst.noise_multiplier,
                sample_rate=worst.sample_rate,
                steps=worst.steps * rounds,
                rounds=rounds,
                clip_norm=config.privacy.sample.max_grad_norm,
                delta=plan.delta_sample or 0.0,
                adjacency=worst.round_event.adjacency,
                event=worst.round_event.times(rounds),
                other_sigma=None if user is None else user.noise_multiplier,
            )
        )
    if user is not None:
        if config.privacy.user.clipping is Clipping.adaptive:
            # An audit has more clients, and must refuse what a run of the configuration would.
            split_noise(user.noise_multiplier, sampler.expected(config.federation.num_clients))
        found.append(
            AuditTarget(
                unit="client",
                noise_multiplier=user.noise_multiplier,
                sample_rate=sampler.rate,
                steps=num_rounds,
                rounds=num_rounds,
                clip_norm=config.privacy.user.max_grad_norm,
                delta=plan.delta_user or 0.0,
                adjacency=user.adjacency,
                event=user.times(num_rounds),
                other_sigma=QUIET if plan.clients else None,
            )
        )
    return found


def _worst_client(config: Config, plan: PrivacyPlan) -> tuple[ClientPlan, int]:
    """The client whose records spend most, and the rounds in which it may take part."""
    rounds = config.federation.num_rounds
    limit = config.federation.max_participations or rounds

    def most(own: ClientPlan) -> int:
        return limit if own.participations is None else own.participations

    def spends(own: ClientPlan) -> float:
        events = [own.round_event.times(most(own))] if most(own) else []
        return History(events).epsilon(
            delta=plan.delta_sample or 0.0, method=config.privacy.accountant.value
        )

    worst = max(set(plan.clients.values()), key=spends)
    return worst, min(most(worst), rounds)


class Attack(StrEnum):
    """What was attacked."""

    release = "one release"
    run = "whole run"


class Verdict(StrEnum):
    """What an audit says about a claim."""

    consistent = "consistent"
    exceeded = "exceeded"
    inconclusive = "inconclusive"
    not_private = "not private"

    @property
    def is_finding(self) -> bool:
        """Whether the claim does not hold."""
        return self in (Verdict.exceeded, Verdict.not_private)


def verdict_of(*, claim: float, shown: float, largest: float) -> Verdict:
    """What follows from a lower bound, and from the largest that the attack could have given."""
    if shown > claim:
        return Verdict.exceeded
    return Verdict.consistent if largest > claim else Verdict.inconclusive


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one attack found about one unit's guarantee."""

    attack: Attack
    target: AuditTarget
    attacked: Mapping[str, Any]  # network, loss and the like
    replaced: str  # what of the configuration took no part
    claim: float | None  # the run's own ε; None where it claims none
    delta: float
    lower_bound: float | None  # the largest ε that the guesses refute; None where no finite ε holds
    largest_bound: float | None  # what as many guesses would refute if all were right
    canaries: int  # over all runs, or releases
    guesses: int
    correct: int
    verdict: Verdict
    statement: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    scores: Floats = field(default_factory=lambda: np.zeros(0))  # of the last run, for the picture
    coins: Coins = field(default_factory=lambda: np.zeros(0, np.bool_))
    marks: tuple[float, ...] = ()  # scores beyond which a guess was made


def statement(
    verdict: Verdict,
    target: AuditTarget,
    *,
    claim: float,
    delta: float,
    shown: float,
    confidence: float,
    evidence: str,
    on: str = "",
) -> str:
    """A verdict in a sentence, with the evidence for it and what the attack was on."""
    said = f"ε = {claim:.3g} (δ = {delta:.1g}) for {UNITS[target.unit]}"
    bound = f"ε > {shown:.2f} at {confidence:.0%} confidence"
    if verdict is Verdict.exceeded:
        return (
            f"The claim of {said} does not hold{on}: {evidence} {bound}. Do not publish, and look "
            "for what is broken."
        )
    if verdict is Verdict.consistent:
        return (
            f"Nothing found against the claim of {said}{on}: {evidence} {bound}. That is not a "
            "proof that the claim holds."
        )
    return f"The claim of {said}{on} is out of {evidence}. They show {bound}."


def marks_of(scores: Floats, *, included: int, excluded: int) -> tuple[float, ...]:
    """The scores at which guesses begin.

    >>> marks_of(np.array([3.0, 1.0, 2.0]), included=1, excluded=1)
    (3.0, 1.0)
    """
    ordered = np.sort(scores)
    high = (float(ordered[-included]),) if included else ()
    return high + ((float(ordered[excluded - 1]),) if excluded else ())
