"""`dp-fedmed audit`: is the ε that is claimed refuted by guesses about what was released?

A claim rests on two things, and each is attacked through the product's own code. One release must
hide a record (or a client) as well as its noise multiplier says, whatever network and loss the user
brought: `release_audit`. And releases, samplers, rounds and accountant must add up to the ε that is
reported: `run_audit`, one-run auditing with canaries, for which the network makes no difference.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dp_fedmed.config import Config
from dp_fedmed.data import load_data
from dp_fedmed.errors import ConfigError
from dp_fedmed.evidence.findings import Attack, AuditTarget, Finding, Verdict, targets
from dp_fedmed.evidence.release_audit import audit_public_seed, audit_release
from dp_fedmed.evidence.run_audit import (
    DEFAULT_COUNT,
    FEWEST,
    MOST,
    CanaryKind,
    audit_run,
    canary_count,
)
from dp_fedmed.reporting.display import LogDisplay

__all__ = ["Attack", "Audit", "CanaryKind", "Finding", "Options", "Verdict", "audit", "planned"]

SCHEMA = 1


class Watcher(LogDisplay):
    """Observes every round of a run, or every release."""

    def advance(self) -> None:
        """One release more."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to audit. None stands for a number that suits the canaries or the noise.

    The seed is of coins, canaries and random weights; None draws them from the operating system.
    Noise never depends on it.
    """

    kind: CanaryKind = CanaryKind.white_box
    count: int | None = None  # canaries of a run
    trials: int | None = None  # releases of which each is guessed about
    repeat: int = 1  # independent runs, whose guesses are counted together
    seed: int | None = None
    confidence: float = 0.95  # of the bound

    def __post_init__(self) -> None:
        for flag, given, usual in (
            ("--canaries-count", self.count, DEFAULT_COUNT),
            ("--trials", self.trials, 2000),
        ):
            if given is not None and not FEWEST <= given <= MOST:
                raise ConfigError(
                    f"{flag} {given} is out of range: give a number from {FEWEST} to {MOST}, for "
                    f"example {usual}"
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
class Audit:
    """One audit of a configuration: what each attack found about each unit that it protects."""

    config: Config
    options: Options
    findings: list[Finding]

    @property
    def decisive(self) -> Finding:
        """The gravest finding; of equal ones the first."""
        order = (Verdict.not_private, Verdict.exceeded, Verdict.inconclusive, Verdict.consistent)
        return min(self.findings, key=lambda each: order.index(each.verdict))

    def to_json(self) -> dict[str, Any]:
        """`audit.json`: the decisive finding, and all of them under `findings`."""
        rows = [self._row(finding) for finding in self.findings]
        return {**self._row(self.decisive), "findings": rows}

    def _row(self, finding: Finding) -> dict[str, Any]:
        target, options = finding.target, self.options
        return {
            "schema": SCHEMA,
            "style": str(self.config.privacy.style),
            "unit": target.unit,
            "attack": str(finding.attack),
            "attacked": dict(finding.attacked),
            "replaced": finding.replaced,
            "claim": {"epsilon": finding.claim, "delta": finding.delta},
            "lower_bound": finding.lower_bound,
            "largest_bound": finding.largest_bound,
            "confidence": options.confidence,
            "canaries": finding.canaries,
            "guesses": finding.guesses,
            "correct": finding.correct,
            "verdict": str(finding.verdict),
            "statement": finding.statement,
            "settings": {
                "task": self.config.task.name,
                "noise_multiplier": target.noise_multiplier,
                "sample_rate": target.sample_rate,
                "steps": target.steps,
                "rounds": target.rounds,
                "max_grad_norm": target.clip_norm,
                "adjacency": target.adjacency,
                "accountant": str(self.config.privacy.accountant),
                "seed": options.seed,
                **finding.settings,
            },
        }


def planned(config: Config, options: Options) -> list[tuple[AuditTarget, int | None]]:
    """What would be audited; with how many canaries, where a whole run is attacked.

    Raises:
        ConfigError: for a configuration that claims nothing, or that canaries cannot test.
    """
    return [
        (target, canary_count(config, target, options.kind, options.count))
        for target in targets(config)
    ]


def audit(
    config: Config,
    options: Options = Options(),  # frozen
    on_start: Callable[[str, int, str], Watcher] = lambda what, total, of: Watcher(),
) -> Audit:
    """Audit every guarantee of a configuration.

    `on_start` is given what is done, how many parts it has and what they are, and returns what
    watches it.

    Raises:
        ConfigError: for a configuration that claims nothing, or that canaries cannot test.
    """
    entropy = options.seed if options.seed is not None else secrets.randbits(128)
    rng = np.random.default_rng(entropy)
    plans = planned(config, options)
    data = load_data(config.data, seed=config.seed)
    found = []
    for target, count in plans:
        if config.privacy.noise_seed is not None:
            found.append(audit_public_seed(config, target, data, rng))
            continue
        if options.kind is CanaryKind.white_box:
            release = audit_release(
                config,
                target,
                data,
                trials=options.trials,
                confidence=options.confidence,
                rng=rng,
                on_start=lambda what, total: on_start(what, total, "releases").advance,
            )
            found.append(release)
        if count is not None:
            run = audit_run(
                config,
                target,
                kind=options.kind,
                count=count,
                repeat=options.repeat,
                confidence=options.confidence,
                rng=rng,
                on_start=lambda what, total: on_start(what, total, "rounds"),
            )
            found.append(run)
    return Audit(config=config, options=options, findings=found)
