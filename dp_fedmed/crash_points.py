"""Named points of a round at which tests kill the process; in production nothing happens there."""

from __future__ import annotations

from collections.abc import Callable


def _nothing(point: str) -> None:
    """The ordinary thing to do at a crash point."""


#: Called with a point's name; a test puts its own function here.
at_crash_point: Callable[[str], None] = _nothing


def crash_point(point: str) -> None:
    """Say that execution has come to a point where a crash is worth a test."""
    at_crash_point(point)
