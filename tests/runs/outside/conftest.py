"""Runs as somebody outside sees them: by commands, on pages, in a browser, from a wheel."""

from __future__ import annotations

import pytest

from tests.runs.finished import a_run, a_sweep, made_run, made_sweep

__all__ = ["a_run", "a_sweep", "made_run", "made_sweep"]


@pytest.fixture(autouse=True, scope="module")
def without_pictures() -> None:
    """Pictures are drawn here, as they are for users."""
