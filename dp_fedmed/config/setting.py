"""What is declared of a setting besides its type and default: meaning, range and role in resume."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import Enum
from typing import Any


class Resume(Enum):
    """What a changed value means for a run that is resumed, and whether rounds compute with it."""

    free = "may change; no round computes with it"
    steers = "may change; rounds compute with it, but none of σ, q, T, C or the unit depends on it"
    new_phase = "the guarantee rests on it, so that a change needs new_phase=true"
    once = "may be given later and stays as given; no round computes with it"
    never = "another value is another run"


FREE, STEERS, NEW_PHASE, ONCE, NEVER = Resume


@dataclass(frozen=True)
class Setting:
    """One setting's metadata.

    Attributes:
        meaning: the line that help and docs show.
        resume: its role in resume; None for that of its section.
        within: smallest and largest value; null is always allowed where the type has it.
        announced: the server decides it for all and says so in its messages: streams depend on the
            value in force, not on the configured one.
    """

    meaning: str
    resume: Resume | None = None
    within: tuple[float, float] | None = None
    announced: bool = False

    @property
    def is_computed_with(self) -> bool:
        """Whether streams depend on the configured value."""
        return self.resume not in (Resume.free, Resume.once) and not self.announced


def setting(default: Any, meaning: str, resume: Resume | None = None, **more: Any) -> Any:
    """A field of the tree; `more` are fields of `Setting`, and `default` may be a factory."""
    metadata = {"setting": Setting(meaning, resume, **more)}
    if default in (dict, list):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def section(node: type, resume: Resume = Resume.new_phase) -> Any:
    """A field that holds further settings; `resume` is the role of those that declare none."""
    return dataclasses.field(default_factory=node, metadata={"resume": resume})
