"""A sweep's page: curves with spread, the best setting under an ε, costs, and failed jobs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dp_fedmed.cli import main
from dp_fedmed.sweeps import page as page_module
from dp_fedmed.sweeps.facts import read_facts
from dp_fedmed.sweeps.figures import sweep_figures
from dp_fedmed.sweeps.page import sweep_page, sweep_summary, write_sweep_report
from dp_fedmed.sweeps.summary import best_by_epsilon, costs, summarize
from tests.sweeps.rows import PRIVATE
from tests.sweeps.rows import row as finished_row


def row(job: int, style: str = "sample", seed: int = 0, **more: Any) -> dict[str, Any]:
    epsilon = more.pop("epsilon", 1.0)
    private = style != "none"
    return {
        "job": job,
        "run_dir": f"{job:03d}",
        "status": "completed",
        "message": "",
        "task": "digits",
        "style": style,
        "seed": seed,
        "topology": "federated",
        "metric": "accuracy",
        "rounds": 3,
        "seconds": 1.0,
        "noise_is_private": private,
        "overrides": {"privacy": style, "privacy.sample.target_epsilon": epsilon, "seed": seed},
        "val": {"accuracy": 0.5},
        "test": {"accuracy": 0.5},
        "epsilon": {"sample": epsilon} if private else {},
        "delta": {"sample": 1e-5} if private else {},
        **more,
    }


def sweep_of(path: Path, rows: list[Any]) -> Any:
    path.mkdir(exist_ok=True)
    (path / "sweep.yaml").write_text("{schema: 1, jobs: 9, swept: {seed: [0, 1]}}")
    (path / "results.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    return read_facts(path)


def accuracy(value: float) -> dict[str, float]:
    return {"accuracy": value}


def test_a_real_sweep_is_compared_and_linked(
    a_sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(a_sweep)]) == 0
    page = (a_sweep / "report.html").read_text()
    assert 'id="figure-curve_breast_cancer_sample"' in page
    assert 'id="figure-settings_breast_cancer"' in page
    links = re.findall(r'href="([^"]+)"', page)
    pages = [link for link in links if link.endswith(".html")]
    assert pages == [f"{job:03d}/report.html" for job in range(6)]
    for link in pages:
        assert (a_sweep / link).is_file()
    assert "&lt;b&gt;cannot&lt;/b&gt; be met; see …/run.log" in page
    assert "/home/ann" not in page
    assert str(a_sweep.parent) not in page
    assert "Publishing all 4 runs of breast_cancer that protect one record costs it at most" in page
    summary = (a_sweep / "report" / "report.md").read_text()
    assert "| sample, ε 1 | 1.00 |" in summary
    assert (a_sweep / "report" / "figures" / "curve_breast_cancer_sample.png").is_file()


def test_another_place_leaves_the_sweep_alone(a_sweep: Path, tmp_path: Path) -> None:
    before = sorted(a_sweep.rglob("*"))
    assert main(["report", str(a_sweep), "-o", str(tmp_path / "p" / "all.html")]) == 0
    assert sorted(a_sweep.rglob("*")) == before
    page = (tmp_path / "p" / "all.html").read_text()
    assert 'href="all/003.html"' in page
    assert (tmp_path / "p" / "all" / "003.html").is_file()


def test_seeds_make_a_mean_and_a_spread(tmp_path: Path) -> None:
    facts = sweep_of(
        tmp_path,
        [
            row(0, test=accuracy(0.8)),
            row(1, seed=1, test=accuracy(0.6), epsilon=1.0 - 1e-9),
            row(2, epsilon=4.0, test=accuracy(0.9)),
        ],
    )
    # The exact ε of seeds may differ; what was asked for is the same.
    facts.jobs[1].overrides["privacy.sample.target_epsilon"] = "1"
    one, four = facts.settings("digits")
    assert str(one.test) == "0.700 ± 0.141"
    assert one.epsilon("sample") == 1.0, "the largest of the seeds"
    assert str(four.test) == "0.900", "one seed has no spread"


def test_settings_that_differ_in_anything_but_the_seed_stay_apart(tmp_path: Path) -> None:
    rows = [row(0), row(1, seed=1)]
    rows[1]["overrides"] |= {"privacy.sample.max_grad_norm": 0.5}
    assert len(sweep_of(tmp_path, rows).settings("digits")) == 2


def test_a_setting_reads_as_somebody_would_say_it(tmp_path: Path) -> None:
    rows = [
        row(0, epsilon=0.5),
        row(1, "hybrid", topology="local_only", epsilon=0.5),
        row(2, "none"),
        row(3, overrides={"federation": "centralized", "training.lr": 0.01}),
    ]
    rows[3]["topology"] = "centralized"
    labels = [setting.label for setting in sweep_of(tmp_path, rows).settings("digits")]
    expected = ["sample, ε 0.5", "hybrid, local only, record ε 0.5", "none"]
    assert labels == [*expected, "sample, centralized, lr 0.01"]


def test_no_privacy_is_one_setting_whatever_epsilon_was_swept(tmp_path: Path) -> None:
    """Its runs repeat each other: counting them as seeds would shrink the error bar."""
    rows = [row(n, "none", seed=n % 2, epsilon=e) for n, e in enumerate((1.0, 1.0, 4.0, 4.0))]
    (setting,) = sweep_of(tmp_path, rows).settings("digits")
    assert len(setting.jobs) == 2


def test_the_best_is_chosen_by_validation_among_private_runs_within_epsilon(
    tmp_path: Path,
) -> None:
    facts = sweep_of(
        tmp_path,
        [
            row(0, epsilon=1.0, val=accuracy(0.70), test=accuracy(0.70)),
            row(1, epsilon=2.0, val=accuracy(0.60), test=accuracy(0.99)),
            row(2, epsilon=4.0, val=accuracy(0.80), test=accuracy(0.75)),
            row(3, epsilon=8.0, val=accuracy(0.99), noise_is_private=False),
            row(4, "none", val=accuracy(0.99)),
        ],
    )
    found = best_by_epsilon(facts.settings("digits"), "sample")
    assert [(b.epsilon, b.setting.first.number) for b in found] == [(1.0, 0), (2.0, 0), (4.0, 2)]
    assert {best.by for best in found} == {"validation"}


@pytest.mark.parametrize("metric", ["loss", "rmse", "mae"])
def test_a_smaller_error_is_better(metric: str, tmp_path: Path) -> None:
    rows = [
        row(0, epsilon=1.0, val={metric: 0.2}, test={metric: 0.2}, metric=metric),
        row(1, epsilon=2.0, val={metric: 0.9}, test={metric: 0.9}, metric=metric),
        row(2, "none", val={metric: 0.1}, test={metric: 0.1}, metric=metric),
    ]
    settings = sweep_of(tmp_path, rows).settings("digits")
    assert best_by_epsilon(settings, "sample")[-1].setting.first.number == 0
    assert [round(cost.lost.mean, 6) for cost in costs(settings)] == [0.1, 0.8]


def test_without_a_validation_metric_the_page_says_that_the_test_set_chose(tmp_path: Path) -> None:
    rows = [row(n, epsilon=1.0 + n, val={"threshold": 3.0}) for n in range(2)]
    facts = sweep_of(tmp_path, rows)
    assert best_by_epsilon(facts.settings("digits"), "sample")[0].by == "test"
    assert "ranked by the test metric" in sweep_page(facts, [], {})


def test_costs_are_told_where_there_are_baselines(tmp_path: Path) -> None:
    facts = sweep_of(
        tmp_path,
        [
            row(0, "none", topology="centralized", test=accuracy(0.9)),
            row(1, "none", test=accuracy(0.8)),
            row(2, "none", topology="local_only", test=accuracy(0.5)),
            row(3, epsilon=2.0, test=accuracy(0.6)),
        ],
    )
    found = {cost.what: round(cost.lost.mean, 6) for cost in costs(facts.settings("digits"))}
    assert found == {
        "federation instead of one pool of data": 0.1,
        "federation instead of every site alone": -0.3,
        "privacy at ε = 2.00 for one record": 0.2,
    }
    page = sweep_page(facts, [], {})
    assert "costs 0.200" in page
    assert "gains 0.300" in page


def test_runs_on_the_same_data_add_up(tmp_path: Path) -> None:
    rows = [row(0, epsilon=1.0), row(1, epsilon=2.5), row(2, "none")]
    facts = sweep_of(tmp_path, rows)
    (total,) = summarize(facts).together
    assert (total.level, total.runs, total.epsilon) == ("sample", 2, 3.5)
    assert total.delta == pytest.approx(2e-5)
    page = " ".join(sweep_page(facts, [], {}).split())
    assert "2 runs of digits that protect one record costs it at most" in page
    assert "the other 1 promise one record nothing" in page


@pytest.mark.parametrize("folder", ["../outside", "javascript:alert(1)", "/etc", "..", "", "a/b"])
def test_a_job_links_to_its_own_run_or_to_nothing(tmp_path: Path, folder: str) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "config.yaml").write_text("{}")
    facts = sweep_of(tmp_path / "sweep", [row(0, run_dir=folder)])
    assert facts.jobs[0].folder == ""


def test_broken_lines_and_repeated_jobs_do_not_stop_the_page(tmp_path: Path) -> None:
    rows = [
        row(0, status="failed", test={}, message="first try"),
        row(0, test=accuracy(0.9)),
        *(7, None, [], {}, {"job": "x"}, {"job": True}),
        {"job": 3},
        row(4, test={"accuracy": float("inf")}, epsilon=float("nan")),
        row(5, epsilon=-1.0, overrides=[1]),
        row(6, style="<i>", task="$\\bad$ & <b>", topology=None),
    ]
    facts = sweep_of(tmp_path, rows)
    assert [job.number for job in facts.jobs] == [0, 3, 4, 5, 6]
    assert [job.number for job in facts.failures] == [3, 4]
    page = sweep_page(facts, sweep_figures(facts), {})
    assert "first try" not in page, "a job that was done again counts once"
    assert "<i>" not in re.sub(r'<div class="meter">.*?</div>', "", page)
    assert "<b>" not in re.sub(r"<b>\d[^<]*</b>", "", page)
    assert sweep_summary(facts, [])


@pytest.mark.parametrize("missing", ["sweep.yaml", "results.jsonl"])
def test_half_a_sweep_is_reported_as_far_as_it_goes(tmp_path: Path, missing: str) -> None:
    sweep_of(tmp_path, [row(0, test=accuracy(0.9))])
    (tmp_path / missing).unlink()
    assert main(["report", str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text()
    assert missing in page
    assert ("No job has a result yet." in page) is (missing == "results.jsonl")


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three jobs: of the first two there is a run, and their pages are empty."""
    path = tmp_path / "sweep"
    path.mkdir()
    (path / "sweep.yaml").write_text("{schema: 1, jobs: 3, swept: {seed: [0, 1, 2]}}")
    rows = [
        finished_row(job, {"seed": job}, 0.5 + 0.1 * job, run_dir=f"{job:03d}", **PRIVATE)
        for job in range(3)
    ]
    (path / "results.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    (path / "000").mkdir()
    (path / "001").mkdir()
    monkeypatch.setattr(page_module, "is_run", lambda folder: folder.is_dir())

    def write_empty(run_dir: Path, page: Path, **more: bool) -> None:
        assert more["figures"] is False
        page.write_text(f"{run_dir.name} {more['inside']} {more['pictures']}")

    monkeypatch.setattr(page_module, "write_run_report", write_empty)
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
