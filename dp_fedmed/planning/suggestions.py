"""What to change in a plan, each with numbers that were computed for it.

Every suggestion is a configuration that would be accepted, planned like the run itself.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from dp_fedmed.config import AccountantName, Config, SamplerName, get
from dp_fedmed.errors import ConfigError
from dp_fedmed.planning.forecast import Forecast, at_delta
from dp_fedmed.planning.plan import make_plan, make_sampler, with_accountant
from dp_fedmed.privacy import PrivacyEvent
from dp_fedmed.privacy.accounting.events import Level

#: What changes less than this is not worth a line.
LEAST = 0.02


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """One change, and what it does to its level: each pair is now and then.

    Attributes:
        key: of the setting.
        before: its value now.
        after: the value suggested.
        level: `sample` or `user`.
        sigma: noise multipliers.
        noise: noise in an average, in units of the clipping norm.
        steps: noisy steps over the run.
        run: signal-to-noise over the whole run, then over now.
        accountant: by which both were planned.
    """

    key: str
    before: Any
    after: Any
    level: str
    sigma: tuple[float, float]
    noise: tuple[float, float]
    steps: tuple[int, int]
    run: float
    accountant: str


@dataclass(frozen=True)
class _Noised:
    """One level under one configuration; `units` are records per step or clients per round."""

    event: PrivacyEvent
    rounds: int
    units: float

    @property
    def noise(self) -> float:
        """In an average."""
        return self.event.noise_multiplier / self.units

    @property
    def steps(self) -> int:
        """Over all rounds."""
        return self.event.count * self.rounds

    @property
    def signal(self) -> float:
        """Signal-to-noise over the run, but for a factor."""
        return math.sqrt(self.steps) / self.noise


def suggestions(made: Forecast, *, fast: bool = False) -> list[Suggestion]:
    """Changes that lower the noise, those that help most over the run first.

    All keep the ε that the plan ends with. Compared by RDP on both sides, which takes
    milliseconds; `tight` is tried itself unless `fast`.
    """
    if made.plan is None or made.rounds == 0:
        return []
    config = _calibrating(made)
    now = _levels(config, made)
    found: list[Suggestion] = []
    for key, after, levels in _changes(made, fast=fast):
        try:
            then = _levels(changed(config, key, after), made)
        except ConfigError:
            continue  # not possible with the other settings, or with this target
        for level in levels:
            old, new = now[level], then[level]
            found.append(
                Suggestion(
                    key=key,
                    before=get(config, key),
                    after=after,
                    level=level,
                    sigma=(old.event.noise_multiplier, new.event.noise_multiplier),
                    noise=(old.noise, new.noise),
                    steps=(old.steps, new.steps),
                    run=new.signal / old.signal,
                    accountant=str(after) if key == "privacy.accountant" else "rdp",
                )
            )
    useful = [each for each in found if each.noise[1] < (1.0 - LEAST) * each.noise[0]]
    return sorted(useful, key=lambda each: (-round(each.run, 2), each.noise[1] / each.noise[0]))


def _calibrating(made: Forecast) -> Config:
    """The run with δ written down, and with a target where it had a noise multiplier."""
    config = at_delta(made.config, made.plan.delta_sample if made.plan is not None else None)
    for level, spent in made.levels.items():
        settings = getattr(config.privacy, level)
        if settings.noise_multiplier is not None:
            settings = dataclasses.replace(
                settings, noise_multiplier=None, target_epsilon=max(1e-3, spent.epsilon["rdp"])
            )
            privacy = dataclasses.replace(config.privacy, **{level: settings})
            config = config.replace(privacy=privacy)
    federation = dataclasses.replace(config.federation, num_rounds=made.rounds)
    return with_accountant(config.replace(federation=federation), AccountantName.rdp)


def changed(config: Config, key: str, value: Any) -> Config:
    """A configuration with another value in one of its sections, validated.

    >>> from dp_fedmed.config import compose
    >>> changed(compose([]), "training.batch_size", 64).training.batch_size
    64
    """
    section, name = key.split(".")
    held = dataclasses.replace(getattr(config, section), **{name: value})
    return config.replace(**{section: held})


def _changes(made: Forecast, *, fast: bool) -> Iterator[tuple[str, Any, Collection[str]]]:
    """(key, value, levels that it may help) to try."""
    config, binding = made.config, made.binding
    federation, rounds = config.federation, made.rounds
    levels = made.levels
    if binding is not None:
        if binding.plan.sample_rate < 1.0:
            yield "training.batch_size", 2 * config.training.batch_size, [Level.sample]
        if config.training.local_steps is None and config.training.local_epochs > 1:
            yield "training.local_epochs", config.training.local_epochs // 2, [Level.sample]
        rate = made.cohort / federation.num_clients
        if rate < 1.0:
            expected = rate * rounds
            most = math.ceil(expected + 2.0 * math.sqrt(expected * (1.0 - rate)))
            if most < (federation.max_participations or rounds):
                yield "federation.max_participations", most, [Level.sample]
    if Level.user in levels:
        if federation.sampler is SamplerName.fixed and federation.sample_rate < 1.0:
            yield "federation.sampler", SamplerName.poisson, [Level.user]
        if federation.sample_rate < 1.0:
            yield "federation.sample_rate", min(1.0, 2.0 * federation.sample_rate), [Level.user]
        yield "federation.num_clients", 2 * federation.num_clients, [Level.user]
    if rounds > 1:
        yield "federation.num_rounds", rounds // 2, levels
    if not fast and made.method == "rdp":
        yield "privacy.accountant", AccountantName.tight, levels


def _levels(config: Config, made: Forecast) -> dict[str, _Noised]:
    """Plan the client that binds, and the federation, under a configuration."""
    sampler = make_sampler(config)
    binding = made.binding
    records = {} if binding is None else {binding.names[0]: binding.plan.records}
    plan = make_plan(config, records=records, sampler=sampler, is_private=True)
    rounds = config.federation.num_rounds
    found: dict[str, _Noised] = {}
    for own in plan.clients.values():
        most = own.participations or rounds
        found[Level.sample] = _Noised(own.round_event, most, own.sample_rate * own.records)
    if plan.user_event is not None:
        cohort = sampler.expected(config.federation.num_clients)
        found[Level.user] = _Noised(plan.user_event, rounds, cohort)
    return found
