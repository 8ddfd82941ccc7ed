"""The lines of a run, without a panel and at its end."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from dp_fedmed.cli import main
from dp_fedmed.config import compose
from dp_fedmed.config.resume import stored_settings
from dp_fedmed.errors import ConfigError
from dp_fedmed.federation.rounds import RoundRecord
from dp_fedmed.reporting.display import (
    STOPPING,
    ConsoleDisplay,
    metrics_table,
    other_run,
    promise_table,
)
from dp_fedmed.reporting.run_facts import read_run
from dp_fedmed.run.results import RunResult


def seen(number: int, accuracy: float, **more: object) -> RoundRecord:
    metrics = {"accuracy": accuracy, "loss": 1.0 - accuracy}
    return RoundRecord(number, server_metrics=metrics, **more)  # type: ignore[arg-type]


def test_without_a_terminal_there_are_plain_lines() -> None:
    file = io.StringIO()
    config = compose(["task=digits", "privacy=none"])
    with ConsoleDisplay(config, Console(file=file, width=60)) as display:
        display.round(seen(1, 0.5, epsilons={"sample": 0.5}))
        display.stopping()
    said = file.getvalue().splitlines()
    assert said == ["round 1 · val accuracy 0.5000, loss 0.5000 · ε_sample 0.500", STOPPING]


def test_the_time_of_a_resumed_run_is_that_of_its_part(tmp_path: Path) -> None:
    config = compose(["task=digits", "privacy=none", "federation.num_rounds=40"])
    for done, said in (
        (0, "40 of 40 rounds in 6.2 s"),
        (20, "rounds, this part of the run in 6.2"),
    ):
        file = io.StringIO()
        display = ConsoleDisplay(config, Console(file=file, width=200))
        display.begin(done, {})
        display.summary(config, RunResult(run_dir=tmp_path, rounds=40, seconds=6.2))
        assert said in file.getvalue()


Runs = Callable[[str], Path]


def lines(table: Table | None, width: int = 120) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width).print(table)
    return file.getvalue().splitlines()


def test_a_private_run_says_what_is_promised_to_whom(made_run: Runs) -> None:
    server, receiver = (
        [cell.strip() for cell in line.split("│")[1:-1]]
        for line in lines(promise_table(made_run("sample")))
        if line.startswith("│")
    )
    assert server == ["The server", "record", "ε = 3.00 at δ = 1e-5", "95.3 %"]
    assert receiver == ["Whoever receives the model", *server[1:]]


def test_what_is_not_promised_is_said_too(made_run: Runs) -> None:
    assert promise_table(made_run("none")) is None
    assert all(
        "no promise: the noise seed is public" in line
        for line in lines(promise_table(made_run("public")))
        if line.startswith("│")
    )
    both = [line for line in lines(promise_table(made_run("hybrid"))) if line.startswith("│")]
    assert ["no promise" in line for line in both] == [False, True, False, False]


@pytest.mark.parametrize("kind", ["sample", "hybrid", "public"])
def test_the_table_of_promises_fits_a_terminal(kind: str, made_run: Runs) -> None:
    assert max(map(len, lines(promise_table(made_run(kind)), 80))) <= 80


def test_another_runs_test_metrics_stand_beside(made_run: Runs) -> None:
    config, facts = stored_settings(made_run("sample")), read_run(made_run("sample"))
    result = RunResult(made_run("sample"), val=facts.val, test=facts.test)
    beside = other_run(made_run("none"), config)
    (row,) = (
        line for line in lines(metrics_table(config, result, beside)) if "balanced_accuracy" in line
    )
    wanted = [values["balanced_accuracy"] for values in (facts.val, facts.test, beside.test)]
    assert [cell.strip() for cell in row.split("│")[2:-1]] == [f"{value:.4f}" for value in wanted]
    heads = lines(metrics_table(config, result, other_run(made_run("sample"), config)))
    assert any("test with sample, ε = 3.00" in line for line in heads)


def test_a_run_ends_with_both_tables(made_run: Runs) -> None:
    path, file = made_run("sample"), io.StringIO()
    config, facts = stored_settings(path), read_run(path)
    beside = other_run(made_run("none"), config)
    display = ConsoleDisplay(config, Console(file=file, width=80), beside)
    display.summary(config, RunResult(path, val=facts.val, test=facts.test))
    said = file.getvalue()
    assert "test without privacy" in said
    assert said.index("balanced_accuracy") < said.index("Whoever receives the model")
    assert said.rstrip().endswith(f"dp-fedmed report {path}")


def test_only_an_ended_run_of_the_same_task_stands_beside(made_run: Runs, tmp_path: Path) -> None:
    config = stored_settings(made_run("sample"))
    with pytest.raises(ConfigError, match="is not a run that has ended"):
        other_run(tmp_path, config)
    with pytest.raises(ConfigError, match=r"a run of task=cells: give one of task=breast_cancer"):
        other_run(made_run("cells"), config)


@pytest.mark.parametrize(
    "words", [["--beside"], ["--beside=/x", "-m"], ["--beside", "/x", "sweep=epsilon"]]
)
def test_a_flag_that_means_nothing_is_refused(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *words]) == 2
    assert "--beside takes the directory of one ended run" in capsys.readouterr().err
