"""Points at which tests kill a process: nothing happens there unless somebody listens."""

from __future__ import annotations

import pytest

from dp_fedmed import crash_points
from dp_fedmed.crash_points import crash_point


def test_points_are_told_to_whoever_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    crash_point("nobody listens")
    heard: list[str] = []
    monkeypatch.setattr(crash_points, "at_crash_point", heard.append)
    crash_point("charge:before")
    assert heard == ["charge:before"]


def test_whoever_listens_may_end_everything_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(point: str) -> None:
        raise SystemExit(point)

    monkeypatch.setattr(crash_points, "at_crash_point", crash)
    with pytest.raises(SystemExit, match="release:file"):
        crash_point("release:file")
