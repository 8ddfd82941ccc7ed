"""The audit of one release: the configuration's own network and loss, or its statistic.

A step is accounted by its noise multiplier σ. The attack gives a lower bound on how well two
neighbouring inputs can be told apart, which is an upper bound on the σ that a correct step would
have had; the run's own accountant makes an ε of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from dp_fedmed.config import Config
from dp_fedmed.data import DataSet
from dp_fedmed.evidence.findings import (
    UNITS,
    Attack,
    AuditTarget,
    Finding,
    Verdict,
    statement,
    verdict_of,
)
from dp_fedmed.evidence.one_release import THRESHOLD, Pair, Seen, attack, fresh_secrets, worst_of
from dp_fedmed.evidence.release_sources import Attacked, attacked
from dp_fedmed.privacy import History
from dp_fedmed.privacy.streams.noise import NoiseKey

FEWEST_TRIALS, MOST_TRIALS = 1000, 4000
CONFIRMED = 0.999  # confidence that an alarm needs, on releases of its own
MOST_MOVED = 1.01  # times the bound; the noise is scaled to 1.002 of it, for rounding
Advance = Callable[[], None]


def default_trials(target: AuditTarget) -> int:
    """Enough that noise divided by 3 shows, within reason: more noise takes more releases."""
    return int(min(MOST_TRIALS, max(FEWEST_TRIALS, 2 * math.ceil(24.0 * target.event.key[1] ** 2))))


def audit_release(
    config: Config,
    target: AuditTarget,
    data: DataSet,
    *,
    trials: int | None,
    confidence: float,
    rng: np.random.Generator,
    on_start: Callable[[str, int], Advance],
) -> Finding:
    """Attack the release that protects one unit.

    `rng` is of canaries and random weights; noise never depends on it. `on_start` is given what
    runs and its length, and returns what is called after each part of it.

    Raises:
        ConfigError: for what a run of the configuration would refuse.
    """
    torch.set_num_threads(config.training.threads)  # as a client does: results depend on it
    trials = default_trials(target) if trials is None else trials
    what = attacked(config, target, data, rng)
    searched = on_start("canaries, the worst of", sum(source.inputs for source in what.sources))
    groups = [[source] for source in what.sources] if what.each_one else [what.sources]
    pairs = [worst_of(group, searched) for group in groups]
    sure = 1.0 - (1.0 - confidence) / len(pairs)  # for all of them together
    seen = []
    for number, pair in enumerate(pairs):
        place = f" {number + 1}/{len(pairs)}" if len(pairs) > 1 else ""
        seen.append(attack(pair, trials, on_start(f"{target.unit}s, one release{place}", trials)))
    worst = max(range(len(pairs)), key=lambda i: seen[i].mu(sure))
    found = seen[worst]
    if found.mu(sure) > 1.0 / target.event.key[1]:
        # One correct build in twenty looks broken at 95 %: releases of their own decide.
        sure = max(sure, CONFIRMED)
        found = attack(
            pairs[worst], trials, on_start(f"{target.unit}s, one release, again", trials)
        )
    return _finding(config, target, what, pairs[worst], found, sure, confidence)


def audit_public_seed(
    config: Config, target: AuditTarget, data: DataSet, rng: np.random.Generator
) -> Finding:
    """An attacker who knows the seed makes the same release again, with and without the canary.

    If the release that has it comes out bit for bit, its presence is certain.
    """
    torch.set_num_threads(config.training.threads)
    what = attacked(config, target, data, rng)
    pair, seed = worst_of(what.sources), config.privacy.noise_seed or 0

    def shown(number: int) -> dict[str, bytes]:
        key = NoiseKey.from_public_seed(seed).derive("client", "audited")
        release = pair.source.release(number, fresh_secrets("audited", key))
        return {name: value.tobytes() for name, value in release.items()}

    certain = shown(pair.present) == shown(pair.present) != shown(pair.absent)
    how = (
        f"whoever knows it releases the same again with and without {UNITS[target.unit]}, and sees "
        "bit for bit which of the two it was"
        if certain
        else "two releases with it differed here, which is no protection to rely on"
    )
    return Finding(
        attack=Attack.release,
        target=target,
        attacked=what.described,
        replaced=what.replaced,
        claim=None,
        delta=target.delta,
        lower_bound=None if certain else 0.0,
        largest_bound=None,
        canaries=1,
        guesses=1,
        correct=int(certain),
        verdict=Verdict.not_private,
        statement=(
            f"Not private: privacy.noise_seed={seed} makes the noise public; {how}. No finite ε "
            "holds; leave privacy.noise_seed null."
        ),
    )


def _finding(
    config: Config,
    target: AuditTarget,
    what: Attacked,
    pair: Pair,
    seen: Seen,
    sure: float,
    confidence: float,
) -> Finding:
    accounted = target.event.key[1]  # σ over how far neighbours may move the sum
    mu, largest = seen.mu(sure), seen.largest_mu(sure)
    claim, shown, most = (
        _epsilon(config, target, factor) for factor in (1.0, mu * accounted, largest * accounted)
    )
    verdict = verdict_of(claim=1.0 / accounted, shown=mu, largest=largest)
    if pair.moved > MOST_MOVED:  # a proof without statistics, also where the noise hides it
        verdict = Verdict.exceeded
    sigma = round(target.noise_multiplier / (mu * accounted), 4) if mu else None
    moved = {"moved": round(pair.moved, 4), "noise_multiplier_shown": sigma}
    return Finding(
        attack=Attack.release,
        target=target,
        attacked={**what.described, **moved},
        replaced=what.replaced,
        claim=claim,
        delta=target.delta,
        lower_bound=shown,
        largest_bound=most,
        canaries=len(seen.scores),
        guesses=len(seen.scores),
        correct=seen.correct,
        verdict=verdict,
        statement=statement(
            verdict,
            target,
            claim=claim,
            delta=target.delta,
            shown=shown,
            confidence=confidence,
            evidence=_evidence(target, pair, verdict, mu * accounted),
            on=f" with {what.name}",
        ),
        scores=seen.scores,
        coins=seen.present,
        marks=(THRESHOLD,),
    )


def _epsilon(config: Config, target: AuditTarget, factor: float) -> float:
    """ε of the run by its own accountant, were the noise smaller by this factor."""
    if factor <= 0.0:
        return 0.0
    event = replace(target.event, noise_multiplier=target.event.noise_multiplier / factor)
    history = History([event])
    found = history.epsilon(delta=target.delta, method=config.privacy.accountant.value)
    if math.isfinite(found):
        return found
    return history.epsilon(delta=target.delta, method="rdp")  # is finite at any σ


def _evidence(target: AuditTarget, pair: Pair, verdict: Verdict, factor: float) -> str:
    """What the releases showed, or why they cannot show enough."""
    sigma, moved = target.noise_multiplier, f"{pair.moved:.3g} times the bound that is accounted"
    if verdict is Verdict.inconclusive:
        return (
            f"reach: noise_multiplier={sigma:.3g} is so little that so many releases, all guessed "
            "right, could not refute it: use a larger --trials"
        )
    seen = (
        f"was seen as if the noise multiplier were at most {sigma / factor:.3g}"
        if factor > 0.0
        else "was not seen"
    )
    if verdict is Verdict.exceeded:
        return (
            f"{UNITS[target.unit]} moves a release by {moved}, and {seen}, where {sigma:.3g} is "
            "accounted:"
        )
    return (
        f"the worst that was tried moves a release by {moved}, and {seen} ({sigma:.3g} is "
        "accounted):"
    )
