"""What is declared of a setting: its default is its own, and its role says what streams need."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import pytest

from dp_fedmed.config.setting import (
    FREE,
    NEVER,
    NEW_PHASE,
    ONCE,
    STEERS,
    Resume,
    Setting,
    section,
    setting,
)


@dataclass
class Inner:
    """A section."""

    rate: float = setting(0.5, "a rate", STEERS, within=(0.0, 1.0))
    names: list[str] = setting(list, "some names")  # noqa: RUF009


@dataclass
class Outer:
    """A tree."""

    inner: Inner = section(Inner)  # noqa: RUF009
    free: Inner = section(Inner, FREE)  # noqa: RUF009


def declared(node: type, name: str) -> Any:
    (found,) = (each for each in dataclasses.fields(node) if each.name == name)
    return found.metadata


def test_a_setting_has_its_default_and_says_what_it_means() -> None:
    assert Inner().rate == 0.5
    assert declared(Inner, "rate")["setting"] == Setting("a rate", STEERS, within=(0.0, 1.0))
    assert declared(Inner, "names")["setting"].resume is None, "that of its section"


def test_two_trees_share_no_list_and_no_section() -> None:
    first, second = Outer(), Outer()
    first.inner.names.append("a")
    first.inner.rate = 1.0
    assert second.inner == Inner()
    assert second.free.names == []


def test_a_section_is_part_of_the_guarantee_unless_told() -> None:
    assert declared(Outer, "inner")["resume"] is NEW_PHASE
    assert declared(Outer, "free")["resume"] is FREE


def test_every_role_has_a_name_of_its_own() -> None:
    assert list(Resume) == [FREE, STEERS, NEW_PHASE, ONCE, NEVER]
    assert [role.name for role in Resume] == ["free", "steers", "new_phase", "once", "never"]


@pytest.mark.parametrize(
    ("resume", "expected"),
    [(FREE, False), (ONCE, False), (STEERS, True), (NEW_PHASE, True), (NEVER, True), (None, True)],
)
def test_streams_depend_on_what_rounds_compute_with(resume: Resume | None, expected: bool) -> None:
    assert Setting("x", resume).is_computed_with is expected
    assert not Setting("x", resume, announced=True).is_computed_with, "the server says the value"
