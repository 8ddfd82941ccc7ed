"""Where a sweep's page, its summary and its runs' pages are written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dp_fedmed.sweeps import report
from dp_fedmed.sweeps.report import write_sweep_report
from tests.sweeps.rows import PRIVATE, row


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three jobs: of the first two there is a run, and their pages are empty."""
    path = tmp_path / "sweep"
    path.mkdir()
    (path / "sweep.yaml").write_text("{schema: 1, jobs: 3, swept: {seed: [0, 1, 2]}}")
    rows = [
        row(job, {"seed": job}, 0.5 + 0.1 * job, run_dir=f"{job:03d}", **PRIVATE)
        for job in range(3)
    ]
    (path / "results.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    (path / "000").mkdir()
    (path / "001").mkdir()
    monkeypatch.setattr(report, "is_run", lambda folder: folder.is_dir())

    def write_empty(run_dir: Path, page: Path, **more: bool) -> None:
        assert more["figures"] is False
        page.write_text(f"{run_dir.name} {more['inside']} {more['pictures']}")

    monkeypatch.setattr(report, "write_run_report", write_empty)
    return path


def test_pages_of_runs_lie_with_them_and_are_linked(sweep: Path) -> None:
    write_sweep_report(sweep, sweep / "report.html", inside=True)
    page = (sweep / "report.html").read_text()
    for job in ("000", "001"):
        assert (sweep / job / "report.html").read_text() == f"{job} True True"
        assert f'href="{job}/report.html"' in page
    assert 'href="002' not in page, "of that job there is no run"
    assert (sweep / "report" / "report.md").is_file()


def test_elsewhere_they_lie_beside_the_page(sweep: Path, tmp_path: Path) -> None:
    before = sorted(sweep.rglob("*"))
    page = tmp_path / "there" / "all.html"
    write_sweep_report(sweep, page, inside=False, pictures=False)
    assert sorted(sweep.rglob("*")) == before
    assert (page.parent / "all" / "001.html").read_text() == "001 False False"
    assert 'href="all/001.html"' in page.read_text()
    assert (page.parent / "all" / "report.md").is_file()


def test_runs_have_no_pages_where_none_are_wanted(sweep: Path) -> None:
    write_sweep_report(sweep, sweep / "report.html", inside=True, runs=False)
    assert not list(sweep.glob("0*/*.html"))
    assert 'href="000' not in (sweep / "report.html").read_text()
