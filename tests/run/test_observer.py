"""Who watches a run in silence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dp_fedmed.config import compose
from dp_fedmed.federation.rounds import RoundRecord
from dp_fedmed.run.directory import RunDirectory
from dp_fedmed.run.observer import Observer
from dp_fedmed.run.results import RunResult


def test_a_silent_one_writes_and_says_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config, directory = compose(["privacy=none"]), RunDirectory(tmp_path)
    anything: Any = None
    with Observer() as observer:
        observer.note("a word")
        observer.describe_clients(config, anything, directory)
        observer.begin(0, {"sample": 1.0})
        observer.round(RoundRecord(1))
        observer.stopping()
        observer.pictures(anything, tmp_path / "pictures.png")
    observer.finish(config, directory, None)
    observer.summary(config, RunResult(run_dir=tmp_path))
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_a_failure_goes_through_it() -> None:
    with pytest.raises(KeyError), Observer():
        raise KeyError("a bug")
