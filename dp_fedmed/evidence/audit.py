"""`dp-fedmed audit`: is the ε that is claimed refuted by guesses about what a real run released?

One-run auditing (Steinke, Nasr and Jagielski 2023): canaries are in the data by fair coins, the
configuration is run by the product's own code, and the coins are guessed from what it released.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from dp_fedmed.config import Config, ConfigError
from dp_fedmed.evidence.audited_run import (
    OVER,
    Coins,
    Floats,
    Outcome,
    Target,
    run_dirac,
    targets,
)
from dp_fedmed.evidence.black_box import most_canaries, run_black_box
from dp_fedmed.privacy.auditing import (
    Guesses,
    count_correct,
    epsilon_lower_bound,
    p_value,
    plan_guesses,
)
from dp_fedmed.reporting.display import LogDisplay

SCHEMA = 1
DEFAULT_COUNT = 4000
FEWEST, MOST = 50, 1_000_000
REPLAYED = 64  # canaries of the two runs that must not be alike
UNITS = {"record": "one record of one site", "client": "one whole client"}


class CanaryKind(StrEnum):
    """What is put into the data, and what the attacker sees of it."""

    white_box = "white-box"
    black_box = "black-box"


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


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to audit.

    Attributes:
        kind: of canaries.
        count: canaries of a run; None for a number that suits them.
        repeat: independent runs, whose guesses are counted together.
        seed: of the coins; None draws them from the operating system. Noise never depends on it.
        confidence: of the bound.
    """

    kind: CanaryKind = CanaryKind.white_box
    count: int | None = None
    repeat: int = 1
    seed: int | None = None
    confidence: float = 0.95

    def __post_init__(self) -> None:
        if self.count is not None and not FEWEST <= self.count <= MOST:
            raise ConfigError(
                f"--canaries-count {self.count} is out of range: give a number from {FEWEST} to "
                f"{MOST}, for example {DEFAULT_COUNT}"
            )
        if not 1 <= self.repeat <= 10_000:
            raise ConfigError(f"--repeat {self.repeat} is out of range: give 1 to 10000")
        if self.seed is not None and self.seed < 0:
            raise ConfigError(f"--seed {self.seed} is negative: give 0 or more")
        if not 0.5 <= self.confidence < 1.0:
            raise ConfigError(
                f"--confidence {self.confidence:g} is out of range: give 0.5 or more and below 1, "
                "for example 0.95"
            )


@dataclass(frozen=True, kw_only=True)
class UnitAudit:
    """What was found about one unit's guarantee.

    Attributes:
        target: what was audited.
        claim: the run's own ε; None where it claims none.
        delta: δ of the claim.
        lower_bound: the largest ε that the guesses refute; None where no finite ε holds.
        largest_bound: what so many guesses would refute if all were right.
        canaries: over all runs.
        guesses: of one run.
        correct: over all runs.
        verdict: what follows.
        statement: the same in a sentence.
        scores: of the last run, for the picture.
        coins: of the last run.
    """

    target: Target
    claim: float | None
    delta: float
    lower_bound: float | None
    largest_bound: float | None
    canaries: int
    guesses: Guesses
    correct: int
    verdict: Verdict
    statement: str
    scores: Floats
    coins: Coins


@dataclass(frozen=True, kw_only=True)
class Audit:
    """One audit of a configuration: a result for each unit that it protects."""

    config: Config
    options: Options
    units: list[UnitAudit]

    @property
    def decisive(self) -> UnitAudit:
        """The unit with the gravest verdict."""
        order = (Verdict.not_private, Verdict.exceeded, Verdict.inconclusive, Verdict.consistent)
        return min(self.units, key=lambda unit: order.index(unit.verdict))

    def to_json(self) -> dict[str, Any]:
        """`audit.json`: the decisive unit, and every unit under `units`."""
        rows = {unit.target.unit: self._row(unit) for unit in self.units}
        return {**rows[self.decisive.target.unit], "units": list(rows.values())}

    def _row(self, unit: UnitAudit) -> dict[str, Any]:
        target, options = unit.target, self.options
        return {
            "schema": SCHEMA,
            "style": str(self.config.privacy.style),
            "unit": target.unit,
            "claim": {"epsilon": unit.claim, "delta": unit.delta},
            "lower_bound": unit.lower_bound,
            "largest_bound": unit.largest_bound,
            "confidence": options.confidence,
            "canaries": unit.canaries,
            "guesses": options.repeat * unit.guesses.total,
            "correct": unit.correct,
            "verdict": str(unit.verdict),
            "statement": unit.statement,
            "settings": {
                "task": self.config.task.name,
                "noise_multiplier": target.noise_multiplier,
                "sample_rate": target.sample_rate,
                "steps": target.steps,
                "rounds": target.rounds,
                "max_grad_norm": target.clip_norm,
                "adjacency": target.adjacency,
                "accountant": str(self.config.privacy.accountant),
                "canaries": str(options.kind),
                "canary_norm": OVER if options.kind is CanaryKind.white_box else None,
                "guessed_in": unit.guesses.included,
                "guessed_out": unit.guesses.excluded,
                "repeat": options.repeat,
                "seed": options.seed,
            },
        }


def planned(config: Config, options: Options) -> list[tuple[Target, int]]:
    """What would be audited, with how many canaries.

    Raises:
        ConfigError: for a configuration that claims nothing, or that canaries cannot test.
    """
    return [(target, _count(config, target, options)) for target in targets(config)]


def audit(
    config: Config,
    options: Options = Options(),  # noqa: B008  # frozen
    on_start: Callable[[str, int], LogDisplay] = lambda what, rounds: LogDisplay(),
) -> Audit:
    """Audit every guarantee of a configuration.

    Args:
        config: as `dp-fedmed run` would take it.
        options: how to audit.
        on_start: given what runs and for how many rounds, what watches it.

    Raises:
        ConfigError: for a configuration that claims nothing, or that canaries cannot test.
    """
    entropy = options.seed if options.seed is not None else secrets.randbits(128)
    rng = np.random.default_rng(entropy)
    found = []
    for target, count in planned(config, options):
        if config.privacy.noise_seed is not None:
            found.append(_public_seed(config, target, rng, on_start))
        else:
            found.append(_audit_unit(config, target, options, count, rng, on_start))
    return Audit(config=config, options=options, units=found)


def _count(config: Config, target: Target, options: Options) -> int:
    if options.kind is CanaryKind.white_box:
        return options.count or DEFAULT_COUNT
    most = most_canaries(config, target)
    count = most if target.unit == "client" or options.count is None else options.count
    if options.count is not None and options.count > most:
        raise ConfigError(
            f"--canaries-count {options.count} is more than the data can give: black-box canaries "
            f"at the level of a {target.unit} are at most {most} here; --repeat adds runs"
        )
    if count < FEWEST:
        raise ConfigError(
            f"{count} black-box canaries are too few to tell anything: give more records or "
            f"federation.num_clients, at least {FEWEST}, or use --canaries white-box"
        )
    return count


def _audit_unit(
    config: Config,
    target: Target,
    options: Options,
    count: int,
    rng: np.random.Generator,
    on_start: Callable[[str, int], LogDisplay],
) -> UnitAudit:
    """Run, guess, bound. How many guesses are made depends on the claim, never on a score."""
    correct, guesses, outcome, coins = 0, None, None, np.zeros(0, np.bool_)
    for number in range(options.repeat):
        coins = rng.random(count) < 0.5
        told = f" {number + 1}/{options.repeat}" if options.repeat > 1 else ""
        outcome = _run(
            config, target, options, coins, rng, on_start(f"{target.unit}s{told}", target.rounds)
        )
        guesses = guesses or plan_guesses(
            canaries=count,
            claim=outcome.epsilon,
            delta=outcome.delta,
            noise_multiplier=target.noise_multiplier,
            sample_rate=target.sample_rate,
            steps=target.steps,
            repeats=options.repeat,
            confidence=options.confidence,
        )
        correct += count_correct(outcome.scores, coins, guesses)
    if outcome is None or guesses is None:
        raise ValueError("an audit makes at least one run")
    total, made = options.repeat * count, options.repeat * guesses.total
    bound = _bound(total, made, correct, outcome.delta, options)
    largest = _bound(total, made, made, outcome.delta, options)
    verdict = _verdict(outcome.epsilon, bound, largest)
    return UnitAudit(
        target=target,
        claim=outcome.epsilon,
        delta=outcome.delta,
        lower_bound=bound,
        largest_bound=largest,
        canaries=total,
        guesses=guesses,
        correct=correct,
        verdict=verdict,
        statement=_statement(target, outcome, bound, largest, verdict, count, options),
        scores=outcome.scores,
        coins=coins,
    )


def _run(
    config: Config,
    target: Target,
    options: Options,
    coins: Coins,
    rng: np.random.Generator,
    display: LogDisplay,
) -> Outcome:
    if options.kind is CanaryKind.white_box:
        return run_dirac(config, target, coins, display)
    return run_black_box(config, target, coins, display, rng)


def _bound(canaries: int, guesses: int, correct: int, delta: float, options: Options) -> float:
    return epsilon_lower_bound(
        canaries=canaries,
        guesses=guesses,
        correct=correct,
        delta=delta,
        confidence=options.confidence,
    )


def _verdict(claim: float, bound: float, largest: float) -> Verdict:
    if bound > claim:
        return Verdict.exceeded
    return Verdict.consistent if largest > claim else Verdict.inconclusive


def _statement(
    target: Target,
    outcome: Outcome,
    bound: float,
    largest: float,
    verdict: Verdict,
    count: int,
    options: Options,
) -> str:
    unit, claim = UNITS[target.unit], f"ε = {outcome.epsilon:.3g} (δ = {outcome.delta:.1g})"
    sure = f"{options.confidence:.0%} confidence"
    if verdict is Verdict.exceeded:
        return (
            f"The claim of {claim} for {unit} does not hold: what was released shows ε > "
            f"{bound:.2f} at {sure}. Do not publish, and look for what is broken."
        )
    if verdict is Verdict.consistent:
        return (
            f"Nothing found against the claim of {claim} for {unit}: what was released shows only "
            f"ε > {bound:.2f} at {sure}. That is not a proof that the claim holds."
        )
    repeat = _repeats_needed(outcome, count, options)
    remedy = (
        f": use --repeat {repeat}"
        if repeat is not None
        else "; a million canaries would not reach it either"
    )
    return (
        f"The claim of {claim} for {unit} is out of reach: so many guesses, all of them right, "
        f"would show no more than ε > {largest:.2f}{remedy}. They show ε > {bound:.2f} at {sure}."
    )


def _repeats_needed(outcome: Outcome, count: int, options: Options) -> int | None:
    """How many runs could refute the claim if every guess were right; None beyond a million."""
    repeat = 2 * options.repeat
    while repeat * count <= MOST:
        total = repeat * count
        refuted = p_value(
            canaries=total,
            guesses=total,
            correct=total,
            epsilon=outcome.epsilon,
            delta=outcome.delta,
        )
        if refuted < 1.0 - options.confidence:
            return repeat
        repeat *= 2
    return None


def _public_seed(
    config: Config,
    target: Target,
    rng: np.random.Generator,
    on_start: Callable[[str, int], LogDisplay],
) -> UnitAudit:
    """An attacker who knows the seed runs the same again, with and without one canary.

    If the release that has it comes out bit for bit, its presence is certain.
    """
    coins = rng.random(REPLAYED) < 0.5
    coins[0] = True
    without = coins.copy()
    without[0] = False
    runs = [
        run_dirac(config, target, each, on_start(f"{target.unit}s, replay", target.rounds)).scores
        for each in (coins, coins, without)
    ]
    certain = np.array_equal(runs[0], runs[1]) and not np.array_equal(runs[0], runs[2])
    unit, seed = UNITS[target.unit], config.privacy.noise_seed
    how = (
        f"whoever knows it runs the same again with and without {unit}, and sees bit for bit "
        "which of the two was released"
        if certain
        else "two runs with it differed here, which is no protection to rely on"
    )
    return UnitAudit(
        target=target,
        claim=None,
        delta=target.delta,
        lower_bound=None if certain else 0.0,
        largest_bound=None,
        canaries=REPLAYED,
        guesses=Guesses(included=1, excluded=0),
        correct=int(certain),
        verdict=Verdict.not_private,
        statement=(
            f"Not private: privacy.noise_seed={seed} makes the noise public; {how}. No finite ε "
            "holds; leave privacy.noise_seed null."
        ),
        scores=runs[0],
        coins=coins,
    )
