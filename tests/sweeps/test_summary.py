"""What follows from a sweep: what its runs cost together, and its best settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dp_fedmed.sweeps.facts import facts_of
from dp_fedmed.sweeps.summary import SweepSummary, best_by_epsilon, spending, summarize
from tests.sweeps.rows import PRIVATE, row


def private(job: int, epsilon: float, value: float, **more: Any) -> dict[str, Any]:
    swept = {"privacy": "sample", "privacy.sample.target_epsilon": epsilon, "seed": 0}
    return row(job, swept, value, **{**PRIVATE, "epsilon": {"sample": epsilon}, **more})


def summary_of(path: Path, *rows: dict[str, Any]) -> SweepSummary:
    return summarize(facts_of(path, list(rows)))


def test_publishing_all_runs_adds_up_and_names_who_is_promised_nothing(tmp_path: Path) -> None:
    rows = [private(0, 1.0, 0.7), private(1, 4.0, 0.8), row(2, {"privacy": "none"}, 0.9)]
    (found,) = summary_of(tmp_path, *rows).together
    assert (found.task, found.level, found.runs, found.others) == ("digits", "sample", 2, 1)
    assert (found.epsilon, found.delta) == (pytest.approx(5.0), pytest.approx(2e-5))


def test_one_run_alone_and_public_noise_are_no_sum(tmp_path: Path) -> None:
    assert summary_of(tmp_path, private(0, 1.0, 0.7)).together == ()
    rows = [private(0, 1.0, 0.7), private(1, 4.0, 0.8, noise_is_private=False)]
    found = summary_of(tmp_path, *rows)
    assert found.together == ()
    assert found.has_public_noise
    assert not summary_of(tmp_path, private(0, 1.0, 0.7)).has_public_noise


def test_a_private_job_that_broke_off_after_a_round_is_named(tmp_path: Path) -> None:
    broken = {"status": "failed", "test": {}, "val": {}}
    rows = [
        private(0, 1.0, 0.7),
        private(1, 1.0, 0.0, rounds=2, **broken),
        private(2, 1.0, 0.0, rounds=0, **broken),
        row(3, {"privacy": "none"}, 0.0, rounds=2, **broken),
    ]
    assert [job.number for job in summary_of(tmp_path, *rows).broke_off] == [1]


def test_the_best_up_to_an_epsilon_never_becomes_worse(tmp_path: Path) -> None:
    rows = [private(0, 1.0, 0.7), private(1, 2.0, 0.6), private(2, 4.0, 0.9)]
    (task,) = summary_of(tmp_path, *rows).tasks
    best = task.best("sample")
    assert [each.epsilon for each in best] == [1.0, 2.0, 4.0]
    assert [each.setting.first.number for each in best] == [0, 0, 2]
    assert {each.by for each in best} == {"validation"}
    assert task.best("user") == []


def test_the_test_set_chooses_only_where_nothing_else_can(tmp_path: Path) -> None:
    rows = [private(0, 1.0, 0.7, val={}), private(1, 1.0, 0.6)]
    rows[1]["overrides"]["training.lr"] = 0.1
    (best,) = best_by_epsilon(facts_of(tmp_path, rows).settings("digits"), "sample")
    assert (best.by, best.setting.first.number) == ("test", 0)


def test_a_task_knows_its_levels_baselines_and_top(tmp_path: Path) -> None:
    rows = [
        private(0, 1.0, 0.7),
        row(1, {"privacy": "none"}, 0.9),
        row(2, {"federation.topology": "centralized"}, 0.95, topology="centralized"),
    ]
    (task,) = summary_of(tmp_path, *rows).tasks
    assert (task.metric, task.levels) == ("accuracy", ["sample"])
    assert task.top.first.number == 2
    assert [s.first.number for s in task.without_privacy] == [1, 2]
    assert [s.first.number for s in task.federated] == [0, 1]
    lost = {cost.what: cost.lost.mean for cost in task.costs}
    assert lost == {
        "federation instead of one pool of data": pytest.approx(0.05),
        "privacy at ε = 1.00 for one record": pytest.approx(0.2),
    }


def test_each_task_adds_up_by_itself(tmp_path: Path) -> None:
    rows = [row(n, {}, 0.9, **PRIVATE) for n in range(2)]
    rows += [row(2 + n, {}, 0.9, **PRIVATE, task="cells") for n in range(3)]
    digits, cells = spending(summarize(facts_of(tmp_path, rows)))
    assert digits.startswith("Publishing all 2 runs of digits that protect one record costs it")
    assert "ε = 2.00" in digits
    assert cells.startswith("Publishing all 3 runs of cells")
    assert "ε = 3.00" in cells


def test_runs_without_privacy_have_spent_nothing_that_adds_up(tmp_path: Path) -> None:
    assert spending(summarize(facts_of(tmp_path, [row(n, {}, 0.9) for n in range(3)]))) == []
    assert spending(summarize(facts_of(tmp_path, []))) == []
