"""What an audit found about one claim: the bound, what follows from it, and a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dp_fedmed.evidence.audited_run import AuditTarget, Coins, Floats

UNITS = {"record": "one record of one site", "client": "one whole client"}


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
    """A verdict in a sentence.

    Args:
        verdict: on the claim.
        target: the unit that it is about.
        claim: the ε that is claimed.
        delta: of the claim.
        shown: the lower bound on ε.
        confidence: of that bound.
        evidence: what leads to the bound; of an inconclusive verdict, why, and what would help.
        on: what was attacked.
    """
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


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one attack found about one unit's guarantee.

    Attributes:
        attack: on one release, or on a whole run.
        target: what was audited.
        attacked: network, loss and the like that were attacked.
        replaced: what of the configuration took no part.
        claim: the run's own ε; None where it claims none.
        delta: δ of the claim.
        lower_bound: the largest ε that the guesses refute; None where no finite ε holds.
        largest_bound: what so many guesses would refute if all were right.
        canaries: canaries over all runs, or releases.
        guesses: how many were made.
        correct: how many of them were right.
        verdict: what follows.
        statement: the same in a sentence.
        settings: how it was attacked.
        scores: of the last run, for the picture.
        coins: of the last run.
        marks: scores beyond which a guess was made.
    """

    attack: Attack
    target: AuditTarget
    attacked: Mapping[str, Any]
    replaced: str
    claim: float | None
    delta: float
    lower_bound: float | None
    largest_bound: float | None
    canaries: int
    guesses: int
    correct: int
    verdict: Verdict
    statement: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    scores: Floats = field(default_factory=lambda: np.zeros(0))
    coins: Coins = field(default_factory=lambda: np.zeros(0, np.bool_))
    marks: tuple[float, ...] = ()


def marks_of(scores: NDArray[np.float64], *, included: int, excluded: int) -> tuple[float, ...]:
    """The scores at which guesses begin.

    >>> marks_of(np.array([3.0, 1.0, 2.0]), included=1, excluded=1)
    (3.0, 1.0)
    """
    ordered = np.sort(scores)
    high = (float(ordered[-included]),) if included else ()
    return high + ((float(ordered[excluded - 1]),) if excluded else ())
