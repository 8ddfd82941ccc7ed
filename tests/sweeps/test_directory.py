"""A sweep's folder: one sweep's alone, and nothing in it is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dp_fedmed.errors import ConfigError, RunLocked
from dp_fedmed.sweeps.directory import (
    SweepDirectory,
    clear_unbegun,
    has_begun,
    make_jobs,
    read_results,
    read_sweep,
)
from tests.sweeps.rows import row

COMMAND = ["dp-fedmed", "run", "--multirun", "privacy=sample", "seed=0,1"]
WORDS = [["privacy=sample", "seed=0"], ["privacy=sample", "seed=1"]]


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
