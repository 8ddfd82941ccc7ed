"""Where a report is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dp_fedmed.cli import main

Runs = Callable[[str], Path]


def test_another_place_leaves_the_run_alone(a_run: Runs, tmp_path: Path) -> None:
    path = a_run("sample")
    before = sorted((p, p.stat().st_mtime_ns) for p in path.rglob("*"))
    assert main(["report", str(path), "-o", str(tmp_path / "there" / "page.html")]) == 0
    assert sorted((p, p.stat().st_mtime_ns) for p in path.rglob("*")) == before
    made = {p.relative_to(tmp_path / "there").as_posix() for p in (tmp_path / "there").rglob("*")}
    assert {"page.html", "page/report.md", "page/privacy_card.md", "page/figures"} <= made
