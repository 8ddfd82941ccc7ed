"""`dp-fedmed data`, as a process."""

from __future__ import annotations

from pathlib import Path

from tests.runs.outside.test_cli import dp_fedmed


def test_data_shows_who_has_what(tmp_path: Path) -> None:
    done = dp_fedmed("data", "data.partition.name=dirichlet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "malignant" in done.stdout
    assert (tmp_path / "partition.png").stat().st_size > 5_000
