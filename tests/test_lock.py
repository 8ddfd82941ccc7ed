"""The lock: every version that is tested, from any index, within the ranges of pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def locked() -> list[Requirement]:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    return [Requirement(line) for line in lines if not line.startswith("#")]


def test_every_version_is_exact_and_names_no_host() -> None:
    text = (ROOT / "requirements.lock").read_text()
    assert not re.search(r"://|@|^-", text, re.MULTILINE), "no host, no option, no path"
    assert len(locked()) > 100
    for pin in locked():
        assert re.fullmatch(r"==[\d.]+(post\d+)?", str(pin.specifier)), f"{pin}: no local build"


@pytest.mark.parametrize("extra", [None, "dev", "docs"])
def test_what_is_locked_is_within_the_ranges(extra: str | None) -> None:
    project = PROJECT["project"]
    wanted = project["dependencies"] if extra is None else project["optional-dependencies"][extra]
    for need in map(Requirement, wanted):
        pins = [pin for pin in locked() if pin.name == need.name]
        assert pins, f"{need.name} is not locked: make lock"
        for pin in pins:
            (exact,) = pin.specifier
            assert need.specifier.contains(exact.version), f"{pin} is outside {need}: make lock"


def test_what_builds_the_wheel_is_locked_too() -> None:
    """`make setup` installs without build isolation, so that no other version gets in."""
    (backend,) = PROJECT["build-system"]["requires"]
    assert backend in PROJECT["project"]["optional-dependencies"]["dev"]


def test_the_environment_is_made_again_when_the_lock_changes() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert "LOCK := requirements.lock\n" in makefile
    assert "$(READY): pyproject.toml $(LOCK)\n" in makefile
