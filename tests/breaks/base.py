"""One deliberate break of the code, and the test that must catch it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Break:
    """One mistake.

    Attributes:
        name: what somebody did.
        file: in `dp_fedmed/`.
        old: what stands there.
        new: what is put in its place.
        caught_by: the test that fails then.
    """

    name: str
    file: str
    old: str
    new: str
    caught_by: str
