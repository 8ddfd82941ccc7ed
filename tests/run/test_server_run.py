"""Pieces of a run at the server: which model is kept, what clients are told, and a full disk."""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord

from dp_fedmed.assemble import Assembly, make_learner
from dp_fedmed.config import Config
from dp_fedmed.federation import Node
from dp_fedmed.federation import arrays as model_arrays
from dp_fedmed.run.observer import Observer
from dp_fedmed.run.results import RunResult
from dp_fedmed.run.server_run import STORAGE_ERRORS, ServerRun

Make = Callable[..., ServerRun]
TINY = ("model._target_=dp_fedmed.models.MLP", "model.args.hidden=[4]", "task.metric=accuracy")


class Judging:
    """Judges a model by the number that it holds."""

    def evaluate(self, state: model_arrays.State, split: str) -> dict[str, float]:
        value = float(state["w"][0])
        return {} if value < 0 else {"accuracy": value, "loss": math.inf}


class Listening(Observer):
    """Remembers how the run ended."""

    def __init__(self) -> None:
        self.ended: list[RunResult] = []

    def summary(self, config: Config, result: RunResult) -> None:
        self.ended.append(result)


@pytest.fixture
def make(small: Callable[..., Config]) -> Iterator[Make]:
    made: list[ServerRun] = []

    def run(*words: str) -> ServerRun:
        made.append(ServerRun(small(*TINY, *words), Assembly(), Listening(), None))
        return made[-1]

    yield run
    for each in made:
        each.store.release()


def model(value: float) -> ArrayRecord:
    return model_arrays.to_record({"w": np.array([value], np.float32)})


def judged(run: ServerRun, *values: float) -> tuple[int | None, dict[str, float]]:
    run.learner = Judging()  # type: ignore[assignment]
    for server_round, value in enumerate(values):
        run.evaluate(server_round, model(value))
    return run.result.selected_round, dict(run.result.val)


def test_without_privacy_the_best_model_is_kept(make: Make) -> None:
    assert judged(make(), 0.25, 0.75, 0.5) == (1, {"accuracy": 0.75})
    assert judged(make(), -1, -1) == (1, {}), "nothing to choose by: the last"


def test_with_privacy_the_last_is_kept_since_choosing_is_a_release(make: Make) -> None:
    run = make("privacy=sample")
    assert judged(run, 0.25, 0.75, 0.5) == (2, {"accuracy": 0.5})
    assert run._best is None


def test_numbers_that_are_not_finite_are_left_out(make: Make) -> None:
    run = make()
    run.learner = Judging()  # type: ignore[assignment]
    assert run.evaluate(0, model(math.nan)) == {}
    assert run.evaluate(1, model(0.5)) == {"accuracy": 0.5}


def test_each_client_is_told_the_noise_of_its_own_plan(make: Make) -> None:
    run = make("privacy=sample", "privacy.sample.grad_mode=hooks")
    run.learner = make_learner(run.config, run.data)
    run._make_strategy({"a": Node(1, records=60), "b": Node(2, records=120)})
    assert run.guard is not None
    for name in "ab":
        order, plan = run._order_to(name), run.guard.plan.clients[name]
        assert order.records is not None
        assert order.records.noise_multiplier == plan.noise_multiplier
        assert order.records.sample_rate == plan.sample_rate
        assert (order.style, order.run, order.server_round) == ("sample", run.store.run, None)
    assert run._order_to("stranger").records is None


def test_without_privacy_nobody_is_told_of_noise(make: Make) -> None:
    run = make()
    run.learner = make_learner(run.config, run.data)
    assert run._order_to("a").records is None
    assert run._order_to("a").style == "none"


def test_a_full_disk_ends_a_run_with_what_to_do(make: Make) -> None:
    run = make()
    assert errno.ENOSPC in STORAGE_ERRORS
    result = run._cannot_write(OSError(errno.ENOSPC, "No space left on device"))
    assert "No space left on device" in result.stopped
    assert f"dp-fedmed resume {run.directory.path}" in result.stopped
    watching: Any = run.observer
    assert watching.ended == [result]


def test_a_run_begins_in_a_directory_of_its_own(make: Make) -> None:
    run = make()
    assert Path(run.config.run_dir) == run.directory.path == run.result.run_dir
    assert (run.directory.path / "config.yaml").is_file()
    assert run.private is False
