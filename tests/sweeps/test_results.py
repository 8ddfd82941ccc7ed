"""A sweep's table: one row a job, read from the run's own files; nothing is made up."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dp_fedmed.config import Config
from dp_fedmed.launch import run_federation
from dp_fedmed.sweeps.results import failed_row, result_row, to_csv
from tests.sweeps.rows import row


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
