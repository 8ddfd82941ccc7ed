"""Runs that draw no pictures, which takes longer than a tiny run does.

A folder whose conftest.py imports `without_pictures` has such runs.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dp_fedmed.reporting import figures, sheets
from dp_fedmed.reporting.run_pictures import RunPictures

draw_sheet = sheets.draw_sheet


@pytest.fixture(autouse=True, scope="module")
def without_pictures() -> Iterator[None]:
    """No curves, partitions or sheets of images; who looks at them has a fixture of this name."""
    patch = pytest.MonkeyPatch()
    patch.setattr(figures, "plot_metrics", lambda *_: None)
    patch.setattr(RunPictures, "describe_clients", lambda *_: None)
    patch.setattr(sheets, "draw_sheet", lambda *_: None)
    yield
    patch.undo()


@pytest.fixture
def with_sheets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sheets of images are drawn after all."""
    monkeypatch.setattr(sheets, "draw_sheet", draw_sheet)
