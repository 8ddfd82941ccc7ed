"""The lines of a run, without a panel and at its end."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from dp_fedmed.config import compose
from dp_fedmed.federation.rounds import RoundRecord
from dp_fedmed.reporting.display import STOPPING, ConsoleDisplay
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
