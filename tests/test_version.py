"""The version is one, wherever it is said."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import dp_fedmed
from dp_fedmed.version import __version__

ROOT = Path(__file__).resolve().parents[1]


def test_the_package_has_the_version_that_it_is_built_with() -> None:
    built = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert __version__ == built["project"]["version"]
    assert dp_fedmed.__version__ == __version__


def test_a_version_has_three_numbers() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", __version__)
