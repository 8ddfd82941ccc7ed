"""Runs that draw no pictures, which takes longer than a tiny run does.

A folder whose conftest.py imports `without_pictures` has such runs.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dp_fedmed.reporting import anomaly_sheet, picture_sheet, plots, segmentation_sheet
from dp_fedmed.reporting.observer import RunPictures


@pytest.fixture(autouse=True, scope="module")
def without_pictures() -> Iterator[None]:
    """No curves, partitions or sheets of images; who looks at them has a fixture of this name."""
    patch = pytest.MonkeyPatch()
    patch.setattr(plots, "plot_metrics", lambda *_: None)
    patch.setattr(RunPictures, "describe_clients", lambda *_: None)
    for sheet in (anomaly_sheet, segmentation_sheet):
        patch.setattr(sheet, "draw_sheet", lambda *_: None)
    yield
    patch.undo()


@pytest.fixture
def with_sheets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sheets of images are drawn after all."""
    for sheet in (anomaly_sheet, segmentation_sheet):
        monkeypatch.setattr(sheet, "draw_sheet", picture_sheet.draw_sheet)
