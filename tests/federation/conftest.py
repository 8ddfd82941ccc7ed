"""Runs here draw no pictures, which takes longer than a tiny run does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dp_fedmed.federation import server_run


@pytest.fixture(autouse=True, scope="module")
def without_pictures() -> Iterator[None]:
    """Neither curves nor partitions; a module that looks at them has a fixture of this name."""
    patch = pytest.MonkeyPatch()
    patch.setattr(server_run, "plot_metrics", lambda *_: None)
    patch.setattr(server_run.ServerRun, "_describe_clients", lambda *_: None)
    yield
    patch.undo()
