"""The audit of a whole run: do releases, samplers, rounds and accountant add up to the claim?

One-run auditing (Steinke, Nasr and Jagielski 2023): canaries are in the data by fair coins, the
configuration is run by the product's own code, and the coins are guessed from what it released.
White-box canaries run on a stand-in network in which each has a weight of its own: how releases
add up does not depend on the network, and nothing else lets thousands of canaries into one run.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import partial

import numpy as np

from dp_fedmed.config import Config, TaskKind
from dp_fedmed.errors import ConfigError
from dp_fedmed.evidence.audited_run import OVER, most_canaries, run_black_box, run_dirac
from dp_fedmed.evidence.findings import (
    Attack,
    AuditTarget,
    Finding,
    Verdict,
    marks_of,
    statement,
    verdict_of,
)
from dp_fedmed.privacy.auditing import count_correct, epsilon_lower_bound, p_value, plan_guesses
from dp_fedmed.reporting.display import LogDisplay

DEFAULT_COUNT = 4000
FEWEST, MOST = 50, 1_000_000


class CanaryKind(StrEnum):
    """What is put into the data, and what the attacker sees of it."""

    white_box = "white-box"
    black_box = "black-box"


_STAND_IN = "a stand-in with one weight per canary"
_REPLACED = {
    CanaryKind.white_box: (
        "network, loss, grad_mode, data, optimizers, weighting and engine; what depends on the "
        "network is attacked by the audit of one release"
    ),
    CanaryKind.black_box: "some records' labels, and the engine",
}


def canary_count(
    config: Config, target: AuditTarget, kind: CanaryKind, given: int | None
) -> int | None:
    """How many canaries a run gets; None where only single releases are attacked.

    Raises:
        ConfigError: for data that cannot give as many.
    """
    if kind is CanaryKind.white_box:
        if config.task.kind is TaskKind.anomaly:
            return None  # a release of a statistic is one round: there is no more to a run
        return given or DEFAULT_COUNT
    most = most_canaries(config, target)
    count = most if target.unit == "client" or given is None else given
    if given is not None and given > most:
        raise ConfigError(
            f"--canaries-count {given} is more than the data can give: black-box canaries "
            f"at the level of a {target.unit} are at most {most} here; --repeat adds runs"
        )
    if count < FEWEST:
        raise ConfigError(
            f"{count} black-box canaries are too few to tell anything: give more records or "
            f"federation.num_clients, at least {FEWEST}, or use --canaries white-box"
        )
    return count


def audit_run(
    config: Config,
    target: AuditTarget,
    *,
    kind: CanaryKind,
    count: int,
    repeat: int,
    confidence: float,
    rng: np.random.Generator,
    on_start: Callable[[str, int], LogDisplay],
) -> Finding:
    """Run, guess, bound. How many guesses are made depends on the claim, never on a score."""
    white_box = kind is CanaryKind.white_box
    correct, guesses, outcome, coins = 0, None, None, np.zeros(0, np.bool_)
    for number in range(repeat):
        coins = rng.random(count) < 0.5
        place = f" {number + 1}/{repeat}" if repeat > 1 else ""
        display = on_start(f"{target.unit}s, a whole run{place}", target.rounds)
        outcome = (
            run_dirac(config, target, coins, display)
            if white_box
            else run_black_box(config, target, coins, display, rng)
        )
        guesses = guesses or plan_guesses(
            canaries=count,
            claim=outcome.epsilon,
            delta=outcome.delta,
            noise_multiplier=target.noise_multiplier,
            sample_rate=target.sample_rate,
            steps=target.steps,
            repeats=repeat,
            confidence=confidence,
        )
        correct += count_correct(outcome.scores, coins, guesses)
    if outcome is None or guesses is None:
        raise ValueError("an audit makes at least one run")
    claim, delta, total = outcome.epsilon, outcome.delta, repeat * guesses.total
    refuted = partial(
        epsilon_lower_bound,
        canaries=repeat * count,
        guesses=total,
        delta=delta,
        confidence=confidence,
    )
    bound, largest = refuted(correct=correct), refuted(correct=total)
    verdict = verdict_of(claim=claim, shown=bound, largest=largest)
    return Finding(
        attack=Attack.run,
        target=target,
        attacked={"network": _STAND_IN}
        if white_box
        else {"network": config.model._target_, "loss": str(config.task.loss)},
        replaced=_REPLACED[kind],
        claim=claim,
        delta=delta,
        lower_bound=bound,
        largest_bound=largest,
        canaries=repeat * count,
        guesses=total,
        correct=correct,
        verdict=verdict,
        statement=statement(
            verdict,
            target,
            claim=claim,
            delta=delta,
            shown=bound,
            confidence=confidence,
            evidence=_evidence(verdict, largest, claim, delta, count, repeat, confidence),
        ),
        settings={
            "canaries": str(kind),
            "canary_norm": OVER if white_box else None,
            "guessed_in": guesses.included,
            "guessed_out": guesses.excluded,
            "repeat": repeat,
        },
        scores=outcome.scores,
        coins=coins,
        marks=marks_of(outcome.scores, included=guesses.included, excluded=guesses.excluded),
    )


def _evidence(
    verdict: Verdict,
    largest: float,
    claim: float,
    delta: float,
    count: int,
    repeat: int,
    confidence: float,
) -> str:
    """What the guesses showed; if too little, how many runs could refute the claim."""
    if verdict is Verdict.exceeded:
        return "what a whole run released shows"
    if verdict is Verdict.consistent:
        return "what a whole run released shows only"
    remedy, needed = "; a million canaries would not reach it either", 2 * repeat
    while (total := needed * count) <= MOST:
        p = p_value(canaries=total, guesses=total, correct=total, epsilon=claim, delta=delta)
        if p < 1.0 - confidence:
            remedy = f": use --repeat {needed}"
            break
        needed *= 2
    return (
        "a whole run's reach: so many guesses, all of them right, would show no more than ε > "
        f"{largest:.2f}{remedy}"
    )
