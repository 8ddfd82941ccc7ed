"""What to change in a plan, each with numbers that were computed for it.

Every suggestion is a configuration that would be accepted, planned like the run itself.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dp_fedmed.config import AccountantName, Config, SamplerName, get
from dp_fedmed.errors import ConfigError
from dp_fedmed.planning.forecast import Forecast, at_delta
from dp_fedmed.planning.plan import make_plan, make_sampler, with_accountant
from dp_fedmed.privacy import PrivacyEvent

#: What changes less than this is not worth a line.
LEAST = 0.02


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """One change and what it does to the level that it is for.

    Attributes:
        key: of the setting.
        before: its value now.
        after: the value suggested.
        level: `sample` or `user`.
        sigma: noise multiplier now and then.
        noise: noise in an average now and then, in units of the clipping norm.
        steps: noisy steps over the run now and then.
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

    @property
    def text(self) -> str:
        """One line."""
        change, noise = _percent(*self.sigma), _percent(*self.noise)
        effects = []
        if self.sigma[0] != self.sigma[1]:
            effects.append(f"σ {self.sigma[0]:.3g} → {self.sigma[1]:.3g} ({change})")
        if noise != change:
            what = "gradient" if self.level == "sample" else "update"
            effects.append(f"noise in an averaged {what} {noise}")
        if self.steps[0] != self.steps[1]:
            plural = "" if self.steps[1] == 1 else "s"
            effects.append(f"{self.steps[1]} step{plural} instead of {self.steps[0]}")
        if abs(self.run - 1.0) >= LEAST:
            effects.append(f"signal-to-noise over the run {_percent(1.0, self.run)}")
        before = "" if self.before is None else f" (now {_shown(self.before)})"
        return f"{self.key}={_shown(self.after)}{before}: {', '.join(effects)}"

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "override": f"{self.key}={_shown(self.after)}",
            "before": None if self.before is None else _shown(self.before),
            "level": self.level,
            "noise_multiplier": list(self.sigma),
            "noise_in_average": list(self.noise),
            "steps": list(self.steps),
            "run_signal_to_noise_ratio": self.run,
            "accountant": self.accountant,
            "text": self.text,
        }


def _percent(before: float, after: float) -> str:
    change = 100.0 * (after / before - 1.0)
    return f"{change:+.0f} %".replace("-", "−")


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class _Levels:
    """(event of a round, rounds, units of a step) of each level, under one configuration."""

    sample: tuple[PrivacyEvent, int, float] | None
    user: tuple[PrivacyEvent, int, float] | None


def suggestions(made: Forecast, *, fast: bool = False) -> list[Suggestion]:
    """Changes that lower the noise, those that help most over the run first.

    All keep the ε that the plan ends with. Compared by RDP on both sides, which takes
    milliseconds; `tight` is tried itself unless `fast`.
    """
    if made.plan is None or made.rounds == 0:
        return []
    config = _calibrating(made)
    now = _levels(config, made)
    found: list[Suggestion | None] = []
    for level, key, after in _changes(made):
        try:
            then = _levels(changed(config, key, after), made)
        except ConfigError:
            continue  # not possible with the other settings, or with this target
        found.append(_compared(level, key, get(config, key), after, now, then, "rdp"))
    if not fast and made.method == "rdp":
        found += _by_tight(config, made, now)
    useful = [each for each in found if each is not None and _helps(each)]
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
    """A configuration with another value at a dotted key, validated.

    >>> from dp_fedmed.config import compose
    >>> changed(compose([]), "training.batch_size", 64).training.batch_size
    64
    """
    parents, leaf = key.split(".")[:-1], key.split(".")[-1]
    nodes = [get(config, ".".join(parents[: depth + 1])) for depth in range(len(parents))]
    for name, node in zip(reversed(parents), reversed(nodes), strict=True):
        value = dataclasses.replace(node, **{leaf: value})
        leaf = name
    return config.replace(**{leaf: value})


def _changes(made: Forecast) -> Iterator[tuple[str, str, Any]]:
    """(level, key, value) to try."""
    config, binding = made.config, made.binding
    federation, rounds = config.federation, made.rounds
    levels = made.levels
    if binding is not None:
        if binding.plan.sample_rate < 1.0:
            yield "sample", "training.batch_size", 2 * config.training.batch_size
        if config.training.local_steps is None and config.training.local_epochs > 1:
            yield "sample", "training.local_epochs", config.training.local_epochs // 2
        rate = made.cohort / federation.num_clients
        if rate < 1.0:
            expected = rate * rounds
            most = math.ceil(expected + 2.0 * math.sqrt(expected * (1.0 - rate)))
            if most < (federation.max_participations or rounds):
                yield "sample", "federation.max_participations", most
    if "user" in levels:
        if federation.sampler is SamplerName.fixed and federation.sample_rate < 1.0:
            yield "user", "federation.sampler", SamplerName.poisson
        if federation.sample_rate < 1.0:
            yield "user", "federation.sample_rate", min(1.0, 2.0 * federation.sample_rate)
        yield "user", "federation.num_clients", 2 * federation.num_clients
    if rounds > 1:
        for level in levels:
            yield level, "federation.num_rounds", rounds // 2


def _levels(config: Config, made: Forecast) -> _Levels:
    """Plan the client that binds, and the federation, under a configuration."""
    sampler = make_sampler(config)
    binding = made.binding
    name = "" if binding is None else binding.names[0]
    records = {} if binding is None else {name: binding.plan.records}
    plan = make_plan(config, records=records, sampler=sampler, is_private=True)
    rounds = config.federation.num_rounds
    sample = user = None
    if binding is not None:
        own = plan.clients[name]
        sample = (own.round_event, own.participations or rounds, own.sample_rate * own.records)
    if plan.user_event is not None:
        user = (plan.user_event, rounds, sampler.expected(config.federation.num_clients))
    return _Levels(sample, user)


def _compared(
    level: str, key: str, before: Any, after: Any, now: _Levels, then: _Levels, accountant: str
) -> Suggestion | None:
    old, new = getattr(now, level), getattr(then, level)
    if old is None or new is None:
        return None
    return Suggestion(
        key=key,
        before=before,
        after=after,
        level=level,
        sigma=(old[0].noise_multiplier, new[0].noise_multiplier),
        noise=(_noise(old), _noise(new)),
        steps=(_steps(old), _steps(new)),
        run=_over_run(new) / _over_run(old),
        accountant=accountant,
    )


def _noise(planned: tuple[PrivacyEvent, int, float]) -> float:
    event, _, units = planned
    return event.noise_multiplier / units


def _steps(planned: tuple[PrivacyEvent, int, float]) -> int:
    event, rounds, _ = planned
    return event.count * rounds


def _over_run(planned: tuple[PrivacyEvent, int, float]) -> float:
    return math.sqrt(_steps(planned)) / _noise(planned)


def _by_tight(config: Config, made: Forecast, now: _Levels) -> Iterator[Suggestion]:
    """What the tighter accountant saves; it calibrates only what has a target."""
    try:
        then = _levels(with_accountant(config, AccountantName.tight), made)
    except ConfigError:
        return
    key = "privacy.accountant"
    for level in made.levels:
        found = _compared(level, key, AccountantName.rdp, AccountantName.tight, now, then, "tight")
        if found is not None:
            yield found


def _helps(found: Suggestion) -> bool:
    return found.noise[1] < (1.0 - LEAST) * found.noise[0]
