"""What follows from a sweep's results, for the terminal and for the page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from dp_fedmed.config import better
from dp_fedmed.reporting.words import ONE_UNIT, epsilon_of, rounded_up
from dp_fedmed.sweeps.facts import JobResult, Setting, Spread, SweepFacts

TUNING = (
    "Every run used the same data, so together they have spent more than each one says, and to "
    "choose among them is one more look that no ε here covers. Choose by the validation metric, "
    "and report how many runs there were."
)
NOT_PRIVATE = (
    "Some runs are not private, since their noise seed is public: their ε counts for nothing."
)


@dataclass(frozen=True)
class SweepSummary:
    """A sweep's tasks, and what its runs have spent together.

    Attributes:
        tasks: those that have a result, in the order of their first job.
        together: what publishing all runs of a task costs one unit.
        broke_off: private jobs that spent something, and have no result.
        has_public_noise: whether the noise of a run that counts as private can be reproduced.
    """

    tasks: tuple[TaskSummary, ...]
    together: tuple[Together, ...]
    broke_off: tuple[JobResult, ...]
    has_public_noise: bool


def summarize(facts: SweepFacts) -> SweepSummary:
    """Compute everything that a page or a terminal shows."""
    return SweepSummary(
        tasks=tuple(TaskSummary(task, tuple(facts.settings(task))) for task in facts.tasks),
        together=tuple(_together(facts)),
        broke_off=tuple(j for j in facts.jobs if j.broke and j.rounds and j.style != "none"),
        has_public_noise=any(j.style != "none" and not j.is_private for j in facts.done),
    )


@dataclass(frozen=True)
class TaskSummary:
    """The settings of one task, side by side."""

    task: str
    settings: tuple[Setting, ...]

    @property
    def metric(self) -> str:
        """By which its models are judged."""
        return self.settings[0].first.metric

    @property
    def levels(self) -> list[str]:
        """The levels for which a setting has an ε."""
        return [level for level in ONE_UNIT if by_epsilon(self.settings, level)]

    @property
    def top(self) -> Setting:
        """The best mean test metric."""
        return max(self.settings, key=lambda s: s.test.mean * better(self.metric))

    @property
    def without_privacy(self) -> list[Setting]:
        """Up to three baselines."""
        return [s for s in self.settings if s.first.style == "none"][:3]

    @property
    def federated(self) -> list[Setting]:
        """Without baselines of other topologies."""
        return [s for s in self.settings if s.first.topology == "federated"]

    @cached_property
    def costs(self) -> list[Cost]:
        """What federating and what privacy cost."""
        return costs(self.settings)

    def best(self, level: str) -> list[Best]:
        """The best setting up to each ε, baselines left out."""
        return best_by_epsilon(self.federated, level) or best_by_epsilon(self.settings, level)


def by_epsilon(settings: Iterable[Setting], level: str) -> list[tuple[float, Setting]]:
    """The private settings with their ε of a level, the smallest first."""
    known = [(e, s) for s in settings if s.is_private and (e := s.epsilon(level)) is not None]
    return sorted(known, key=lambda pair: pair[0])


@dataclass(frozen=True)
class Together:
    """What publishing all runs of a task costs one unit; `others` promise it nothing."""

    task: str
    level: str
    runs: int
    others: int
    epsilon: float
    delta: float


def _together(facts: SweepFacts) -> Iterable[Together]:
    """By basic composition, since the runs of a task are on the same data."""
    for task in dict.fromkeys(job.task for job in facts.jobs):
        jobs = [job for job in facts.jobs if job.task == task and not job.broke]
        for level in ONE_UNIT:
            held = [j for j in jobs if j.is_private and {level} <= j.epsilon.keys() & j.delta]
            if len(held) > 1:
                epsilon = math.fsum(job.epsilon[level] for job in held)
                delta = math.fsum(job.delta[level] for job in held)
                others = len(jobs) - len(held)
                yield Together(task, level, len(held), others, epsilon, delta)


def spending(summary: SweepSummary) -> list[str]:
    """What publishing all runs of a task costs one record or client, and what is not counted."""
    found = []
    for total in summary.together:
        unit = ONE_UNIT[total.level]
        spent = epsilon_of({"epsilon": total.epsilon, "delta": total.delta})
        found.append(
            f"Publishing all {total.runs} runs of {total.task} that protect {unit} costs it at "
            f"most {spent}"
            + (f"; the other {total.others} promise {unit} nothing." if total.others else ".")
        )
    if summary.broke_off:
        names = ", ".join(f"{job.number:03d}" for job in summary.broke_off)
        found.append(
            f"What the jobs spent that broke off ({names}) is in their ledgers, not in these sums."
        )
    return found


@dataclass(frozen=True)
class Best:
    """The best setting among those that spend at most ε."""

    epsilon: float
    setting: Setting
    by: str


def best_by_epsilon(settings: Sequence[Setting], level: str) -> list[Best]:
    """For each ε that a setting has, the best setting up to it, by mean validation metric.

    Only where a setting has no validation metric (normal images have none) is it the test metric.
    """
    known = by_epsilon(settings, level)
    by_val = all(s.val is not None for _, s in known)
    found: list[Best] = []
    held: tuple[float, Setting] | None = None
    for epsilon, setting in sorted(known, key=lambda pair: (pair[0], pair[1].label)):
        judged = setting.val if by_val and setting.val is not None else setting.test
        score = better(setting.first.metric) * judged.mean
        if held is None or score > held[0]:
            held = (score, setting)
        best = Best(epsilon, held[1], "validation" if by_val else "test")
        if found and found[-1].epsilon == epsilon:
            found[-1] = best
        else:
            found.append(best)
    return found


@dataclass(frozen=True)
class Cost:
    """What a step from one setting to another costs in the test metric; negative is a gain."""

    what: str
    before: Setting
    after: Setting

    @cached_property
    def lost(self) -> Spread:
        """In units of the metric, positive where the step makes it worse; seed by seed."""
        sign = better(self.before.first.metric)
        held = [
            {job.seed: job.test[job.metric] for job in s.jobs} for s in (self.before, self.after)
        ]
        return Spread.of(
            sign * (held[0][seed] - held[1][seed]) for seed in held[0].keys() & held[1]
        )


def costs(settings: Sequence[Setting]) -> list[Cost]:
    """What federating and what privacy cost, where there are baselines with the same seeds.

    Compared are settings that differ in the topology, or in privacy, and in nothing else.
    """

    def place(setting: Setting, topology: str | None = None) -> tuple[str, ...]:
        words = [word for word in setting.first.setting[3:] if not word.startswith("privacy.")]
        return (topology or setting.first.topology, *words)

    base = {place(s): s for s in reversed(settings) if s.first.style == "none"}
    found = []
    for setting in settings:
        here = setting.first.topology
        if setting.first.style == "none" and here == "federated":
            for topology, what in (
                ("centralized", "one pool of data"),
                ("local_only", "every site alone"),
            ):
                other = base.get(place(setting, topology))
                if other:
                    found.append(Cost(f"federation instead of {what}", other, setting))
        elif setting.is_private and (reference := base.get(place(setting))):
            spent = [
                f"ε = {rounded_up(e)} for {unit}"
                for level, unit in ONE_UNIT.items()
                if (e := setting.epsilon(level)) is not None
            ]
            shown = "" if here == "federated" else f", {setting.first.where}"
            found.append(Cost(f"privacy at {' and '.join(spent)}{shown}", reference, setting))
    return [cost for cost in found if cost.lost.count]
