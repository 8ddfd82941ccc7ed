"""A sweep's files: one row a job, read from the run's own files; nothing is lost or made up."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dp_fedmed.config import Config, compose
from dp_fedmed.engines.running import run_federation
from dp_fedmed.errors import ConfigError, RunLocked
from dp_fedmed.sweeps.directory import (
    SweepDirectory,
    clear_unbegun,
    has_begun,
    make_jobs,
    read_results,
    read_sweep,
)
from dp_fedmed.sweeps.display import SweepDisplay, describe_row, spending_lines
from dp_fedmed.sweeps.facts import facts_of
from dp_fedmed.sweeps.jobs import with_workers
from dp_fedmed.sweeps.page import sweep_page, sweep_summary
from dp_fedmed.sweeps.results import failed_row, result_row, to_csv
from dp_fedmed.sweeps.summary import costs
from dp_fedmed.sweeps.words import NOT_PRIVATE

COMMAND = ["dp-fedmed", "run", "--multirun", "privacy=sample", "seed=0,1"]
WORDS = [["privacy=sample", "seed=0"], ["privacy=sample", "seed=1"]]


PRIVATE = {
    "style": "sample",
    "noise_is_private": True,
    "epsilon": {"sample": 1.0},
    "delta": {"sample": 1e-5},
}


def row(job: int, overrides: dict[str, Any], value: float, **more: Any) -> dict[str, Any]:
    return {
        "job": job,
        "task": "digits",
        "overrides": overrides,
        "seed": overrides.get("seed", 0),
        "status": "completed",
        "metric": "accuracy",
        "topology": "federated",
        "style": "none",
        "val": {"accuracy": value},
        "test": {"accuracy": value},
        "epsilon": {},
        "delta": {},
        **more,
    }


def test_a_row_says_what_the_runs_own_files_say(small: Callable[..., Config]) -> None:
    config = small("privacy=hybrid", "seed=3", "federation.num_clients=6")
    result = run_federation(config)
    report = json.loads((result.run_dir / "privacy_report.json").read_text())
    found = result_row(7, result.run_dir, {"seed": 3}, seconds=1.5)
    assert list(found) == [
        *("job", "run_dir", "overrides", "status", "message", "task", "style", "seed"),
        *("topology", "clients", "rounds", "seconds", "metric", "val", "test"),
        *("epsilon", "delta", "target_epsilon", "noise_is_private"),
    ]
    epsilons = {guarantee["unit"]: guarantee["epsilon"] for guarantee in report["guarantees"]}
    assert found["epsilon"] == {"sample": epsilons["record"], "user": epsilons["client"]}
    assert found["target_epsilon"] == {"sample": 3.0, "user": 8.0}
    assert found["test"] == result.test
    assert (found["rounds"], found["clients"], found["style"]) == (2, 6, "hybrid")
    assert found["noise_is_private"] is True
    assert result_row(7, result.run_dir, {})["seconds"] > 0
    (result.run_dir / "metrics.jsonl").write_text('{"round": 1}\n{"final": tr')
    with pytest.raises(ValueError, match="no final line"):
        result_row(7, result.run_dir, {})


def test_the_table_has_a_column_for_every_value(tmp_path: Path) -> None:
    failed = failed_row(1, tmp_path / "001", {"seed": 1, "task": "digits"}, "no\nway", seconds=2)
    text = to_csv([row(0, {"seed": 0, "privacy.sample.target_epsilon": 0.5}, 0.9), failed])
    read = list(csv.DictReader(io.StringIO(text)))
    assert read[0]["privacy.sample.target_epsilon"] == "0.5"
    assert (read[0]["test.accuracy"], read[1]["test.accuracy"]) == ("0.9", "")
    assert (read[1]["message"], read[1]["task"], read[1]["seed"]) == ("no way", "digits", "1")


def test_swept_values_keep_their_types() -> None:
    words = [["privacy=sample", f"training.lr={lr}", "model.args={a: 1}"] for lr in ("0.1", "1")]
    jobs = make_jobs(words, first=4)
    assert [job.overrides for job in jobs] == [{"training.lr": 0.1}, {"training.lr": 1}]
    assert [job.number for job in jobs] == [4, 5]


def test_a_sweep_directory_takes_no_other_sweep(tmp_path: Path) -> None:
    jobs = make_jobs(WORDS)
    first = SweepDirectory(tmp_path, COMMAND, jobs)
    with pytest.raises(RunLocked):
        SweepDirectory(tmp_path, COMMAND, jobs)
    first.lock.release()
    stored = read_sweep(tmp_path)
    assert stored["swept"] == {"seed": [0, 1]}
    assert {key: stored[key] for key in ("schema", "command", "jobs")} == {
        "schema": 1,
        "command": COMMAND,
        "jobs": 2,
    }
    SweepDirectory(tmp_path, [*COMMAND, "hydra.launcher.n_jobs=1"], jobs).lock.release()
    with pytest.raises(ConfigError, match=r"holds another sweep.*dp-fedmed resume"):
        SweepDirectory(tmp_path, [*COMMAND, "training.lr=0.5"], jobs)
    more = make_jobs([*WORDS, ["privacy=sample", "seed=2"]])
    with pytest.raises(ConfigError, match="holds another sweep"):
        SweepDirectory(tmp_path, COMMAND, more)
    (tmp_path / "sweep.yaml").write_text("schema: [")
    with pytest.raises(ConfigError, match="cannot be read"):
        SweepDirectory(tmp_path, COMMAND, jobs)


def test_a_run_directory_takes_no_sweep(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()
    with pytest.raises(ConfigError, match="holds a single run"):
        SweepDirectory(tmp_path, COMMAND, make_jobs(WORDS))


def test_results_survive_a_line_that_was_cut_off(tmp_path: Path) -> None:
    directory = SweepDirectory(tmp_path, COMMAND, make_jobs(WORDS))
    directory.add(row(1, {"seed": 1}, 0.8))
    directory.add(row(0, {"seed": 0}, 0.9))
    assert [r["job"] for r in map(json.loads, (tmp_path / "results.jsonl").open())] == [1, 0]
    with open(tmp_path / "results.jsonl", "a") as file:
        file.write('{"job": 2, "run_d')
    assert [r["job"] for r in read_results(tmp_path)] == [0, 1]
    directory.write_results()
    assert [r["job"] for r in map(json.loads, (tmp_path / "results.jsonl").open())] == [0, 1]


def test_a_job_whose_ledger_has_begun_is_never_removed(tmp_path: Path) -> None:
    run = tmp_path / "000"
    (run / "private").mkdir(parents=True)
    (run / "config.yaml").touch()
    (run / "private" / "ledger.jsonl").write_text('{"n":0,"ki')
    clear_unbegun(run)
    assert not run.exists()
    (run / "private").mkdir(parents=True)
    (run / "private" / "ledger.jsonl").write_text('{"n":0}\n')
    clear_unbegun(run)
    assert has_begun(run)


def test_means_are_over_seeds_only(tmp_path: Path) -> None:
    rows = [
        row(job, {"training.lr": lr, "seed": seed}, value)
        for job, (lr, seed, value) in enumerate(
            [(0.1, 0, 0.7), (0.1, 1, 0.9), (1, 0, 0.6), (1, 1, 0.6)]
        )
    ]
    rows.append(row(4, {"training.lr": 1, "seed": 2}, 0.0, status="failed", test={}, val={}))
    first, second = facts_of(tmp_path, rows).settings("digits")
    assert (first.first.overrides["training.lr"], first.test.count) == ("0.1", 2)
    assert (first.test.mean, first.test.sd) == (pytest.approx(0.8), pytest.approx(0.1414, abs=1e-4))
    assert (second.test.mean, second.test.sd) == (pytest.approx(0.6), pytest.approx(0.0))


def test_costs_compare_the_same_seeds_and_nothing_else_that_was_swept(tmp_path: Path) -> None:
    values = {
        ("centralized", "none"): [0.90, 0.92],
        ("federated", "none"): [0.88, 0.92],
        ("local_only", "none"): [0.70],
        ("federated", "sample"): [0.80, 0.82],
    }
    rows = [
        row(
            10 * place + seed,
            {"federation.topology": topology, "privacy": style, "seed": seed},
            value,
            topology=topology,
            **(PRIVATE if style == "sample" else {}),
        )
        for place, ((topology, style), held) in enumerate(values.items())
        for seed, value in enumerate(held)
    ]

    def found() -> dict[str, Any]:
        return {c.what: c.lost for c in costs(facts_of(tmp_path, rows).settings("digits"))}

    assert found()["federation instead of one pool of data"].mean == pytest.approx(0.01)
    alone = found()["federation instead of every site alone"]
    assert (alone.mean, alone.sd) == (pytest.approx(-0.18), None)
    assert found()["privacy at ε = 1.00 for one record"].mean == pytest.approx(0.09)
    assert len(found()) == 3
    for one in rows:
        if one["style"] == "sample":
            one["overrides"]["training.lr"] = 0.1
    assert len(found()) == 2, "what differs in a learning rate too is no cost of privacy"


def test_what_runs_spend_is_added_up(tmp_path: Path) -> None:
    both = {"epsilon": {"sample": 2.0, "user": 4.0}, "delta": {"sample": 1e-5, "user": 1e-3}}
    rows = [
        row(0, {}, 0.9, **PRIVATE),
        row(1, {}, 0.9, **{**PRIVATE, **both}),
        row(2, {}, 0.9),
    ]

    def said(*more: dict[str, Any]) -> str:
        return " ".join(spending_lines(facts_of(tmp_path, [*rows, *more])))

    assert "all 2 runs of digits that protect one record costs it at most ε = 3.00 at" in said()
    assert "the other 1 promise one record nothing" in said()
    assert "one client" not in said(), "one run alone is no sum"
    early = row(3, {}, 0.9, **{**PRIVATE, "epsilon": {"sample": 4.0}}, status="stopped", test={})
    assert "ε = 7.00 " in said(early), "what stopped early has spent too"
    failed = row(4, {}, 0.9, epsilon={}, delta={}, status="failed")
    assert said(failed) == said()
    broke = row(4, {}, 0.9, style="sample", epsilon={}, delta={}, status="failed", rounds=3)
    assert "(004) is in their ledgers, not in these sums" in said(broke)


def test_a_public_noise_seed_promises_nothing_on_the_terminal_and_on_the_page(
    tmp_path: Path,
) -> None:
    public = {**PRIVATE, "noise_is_private": False, "epsilon": {"sample": 3.0}}
    rows = [row(n, {"privacy": "sample", "seed": n}, 0.9, **public) for n in range(2)]
    facts = facts_of(tmp_path, rows)
    shown = io.StringIO()
    SweepDisplay(tmp_path, [], rows, Console(file=shown, width=200)).summary(rows)
    page, terminal = sweep_page(facts, [], {}), " ".join(shown.getvalue().split())
    for text in (terminal, page, sweep_summary(facts, [])):
        assert "6.0" not in text
        assert "3.0" not in text
    assert NOT_PRIVATE in terminal
    assert NOT_PRIVATE in page
    assert "noise seed is public" in describe_row(rows[0] | {"seconds": 1.0}, "")
    assert "ε" not in describe_row(rows[0] | {"seconds": 1.0}, "")


def test_the_last_jobs_use_idle_cores_unless_settings_or_threads_forbid() -> None:
    assert with_workers(compose(), 2).engine.workers == 2
    assert with_workers(compose(["engine.workers=1"]), 2).engine.workers == 1
    assert with_workers(compose(["training.threads=2"]), 2).engine.workers == 1
    ray = compose(["engine=ray"])
    assert with_workers(ray, 2) == ray
