"""Whole federations on the local engine: learning, failing, stopping."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from dp_fedmed.config import Config, DataConfig, compose
from dp_fedmed.data import DataSet, Records
from dp_fedmed.engines import running as engines
from dp_fedmed.errors import ConfigError
from dp_fedmed.launch import run_federation
from dp_fedmed.models import MLP
from dp_fedmed.run.directory import RunDirectory

HERE = __name__
OWN = "allow_code=[tests]"


@pytest.mark.parametrize(
    ("overrides", "metric", "floor"),
    [
        (["task=breast_cancer"], "balanced_accuracy", 0.90),
        (["task=digits", "federation.num_rounds=10"], "accuracy", 0.90),
        (["federation.server_optimizer=fedavgm", "federation.server_lr=0.3"], "auroc", 0.97),
        (["task=digits", "federation.num_clients=20", "federation.sample_rate=0.3"], "auroc", 0.9),
    ],
)
def test_a_federation_learns(
    overrides: list[str], metric: str, floor: float, small: Callable[..., Config]
) -> None:
    result = run_federation(small("federation.num_rounds=8", "engine.workers=2", *overrides))
    assert result.test[metric] > floor
    assert result.stopped == "completed"


def test_validation_chooses_the_model_and_test_data_are_used_once(
    small: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dp_fedmed.learning.networks.classification import Classification

    asked: list[int] = []
    original = Classification.evaluate

    def counting(self, model: nn.Module, records: Records, device: torch.device):
        asked.append(len(records))
        return original(self, model, records, device)

    monkeypatch.setattr(Classification, "evaluate", counting)
    config = small("federation.num_rounds=6", "federation.client_evaluate_every=0")
    result = run_federation(config)
    from dp_fedmed.data import load_data

    data = load_data(config.data, seed=config.seed)
    assert asked.count(len(data.test)) == 1
    rows = RunDirectory(result.run_dir).metrics()
    scores = [row["val"]["balanced_accuracy"] for row in rows[:-1]]
    assert result.selected_round == int(np.argmax(scores))
    assert result.val["balanced_accuracy"] == max(scores)


class Exploding(MLP):
    """A network whose training raises at one client: the one with a record of value 99."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and bool((x == 99.0).any()):
            raise RuntimeError("secret record 99")
        return super().forward(x)


def load_with_a_bad_record(config: DataConfig, seed: int) -> DataSet:
    rng = np.random.default_rng(0)

    def records(n: int) -> Records:
        y = np.arange(n) % 2
        x = rng.normal(size=(n, 4)).astype(np.float32) + 2 * y[:, None].astype(np.float32)
        return Records(x, y)

    train = records(40)
    train.x[7] = 99.0
    return DataSet(train, records(20), records(20), 2, ("no", "yes"))


BAD = [OWN, f"data.name={HERE}.load_with_a_bad_record", f"model._target_={HERE}.Exploding"]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_client_that_raises_is_left_out_and_named(
    workers: int, small: Callable[..., Config]
) -> None:
    config = small(*BAD, f"engine.workers={workers}", "data.client_val_fraction=0")
    result = run_federation(config)
    assert result.stopped == "completed"
    rows = RunDirectory(result.run_dir).metrics()
    assert [len(row["failed"]) for row in rows[1:3]] == [1, 1]
    log = (Path(result.run_dir) / "run.log").read_text()
    assert log.count("contributed nothing: RuntimeError in the client") == 1
    assert "secret record" not in log
    own = Path(result.run_dir) / "private" / "clients.log"
    assert "secret record 99" in own.read_text()
    assert own.stat().st_mode & 0o077 == 0
    published = (Path(result.run_dir) / "metrics.jsonl").read_text()
    assert "secret record" not in published


def test_too_few_clients_end_the_run_with_a_usable_model(small: Callable[..., Config]) -> None:
    config = small(*BAD, "federation.min_clients=4", "data.client_val_fraction=0")
    result = run_federation(config)
    assert "federation.min_clients=4" in result.stopped
    assert result.rounds == 0
    assert RunDirectory(result.run_dir).load_model()
    assert result.test


def test_more_clients_than_records_says_both_keys(small: Callable[..., Config]) -> None:
    config = small("federation.num_clients=5000")
    with pytest.raises(ConfigError, match=r"federation\.num_clients"):
        run_federation(config)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_client_with_one_record_takes_part(workers: int, small: Callable[..., Config]) -> None:
    config = small(
        *(OWN, f"data.name={HERE}.load_with_a_bad_record", "federation.num_clients=40"),
        *("data.partition.min_records=1", f"engine.workers={workers}"),
    )
    result = run_federation(config)
    assert result.stopped == "completed"
    assert RunDirectory(result.run_dir).metrics()[1]["failed"] == []


def test_a_round_timeout_needs_workers_and_loses_only_the_late(
    small: Callable[..., Config],
) -> None:
    config = small(
        *(OWN, f"data.name={HERE}.load_with_a_bad_record", f"model._target_={HERE}.Sleeping"),
        *("engine.workers=2", "federation.round_timeout=3", "federation.num_rounds=1"),
        *("data.client_val_fraction=0", "federation.client_evaluate_every=0"),
    )
    result = run_federation(config)
    rows = RunDirectory(result.run_dir).metrics()
    assert len(rows[1]["failed"]) == 1
    assert result.stopped == "completed"


class Sleeping(MLP):
    """A network that never comes back from the client with a record of value 99."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and bool((x == 99.0).any()):
            import time

            time.sleep(120)
        return super().forward(x)


def test_workers_default_to_the_cores_but_not_more_than_clients() -> None:
    import os

    cores = len(os.sched_getaffinity(0))
    assert engines.num_workers(compose(["federation.num_clients=1"])) == 1
    assert engines.num_workers(compose(["federation.num_clients=500"])) == cores
    assert engines.num_workers(compose(["engine.workers=7"])) == 7


def test_a_relative_run_dir_is_refused(small: Callable[..., Config]) -> None:
    with pytest.raises(ConfigError, match="not an absolute path"):
        run_federation(small("run_dir=somewhere/else"))


def test_a_full_or_forbidden_disk_is_one_sentence(small: Callable[..., Config]) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        run_federation(small("run_dir=/proc/nothing/here"))


class NaNWhenEvaluated(MLP):
    """A network whose evaluation at a client is not a number."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = super().forward(x)
        return logits if self.training or len(x) == 20 else logits * float("nan")


def test_a_clients_bad_evaluation_costs_its_evaluation_only(small: Callable[..., Config]) -> None:
    config = small(
        *(
            OWN,
            f"data.name={HERE}.load_with_a_bad_record",
            f"model._target_={HERE}.NaNWhenEvaluated",
        ),
        *("federation.client_evaluate_every=1", "federation.num_rounds=2"),
    )
    result = run_federation(config)
    assert result.stopped == "completed"
    assert result.clients == {}


def test_the_last_model_is_judged_even_between_evaluations(small: Callable[..., Config]) -> None:
    config = small(
        *(*BAD, "federation.min_clients=4", "data.client_val_fraction=0"),
        *("federation.evaluate_every=50", "federation.num_rounds=3"),
    )
    stopped = run_federation(config)
    assert stopped.val, "the model that is handed over was validated"
    unchecked = run_federation(small("federation.evaluate_every=0"))
    assert unchecked.selected_round == unchecked.rounds == 2


def test_a_timeout_is_kept_even_where_one_worker_would_do(small: Callable[..., Config]) -> None:
    config = small(
        *(OWN, f"data.name={HERE}.load_with_a_bad_record", f"model._target_={HERE}.Sleeping"),
        *("engine.workers=null", "federation.num_clients=1", "federation.round_timeout=2"),
        *("data.client_val_fraction=0", "federation.client_evaluate_every=0"),
    )
    result = run_federation(config)
    assert "federation.min_clients=1" in result.stopped


def test_labels_that_do_not_fit_the_task_are_refused_before_a_directory_is_made(
    small: Callable[..., Config],
) -> None:
    config = small("task=cells", "data.name=digits")
    with pytest.raises(ConfigError, match=r"task\.kind=segmentation.*data\.name=digits"):
        run_federation(config)
    assert not Path(config.run_dir).exists()


class MixesRecords(MLP):
    """Subtracts the batch mean: a record's loss depends on its neighbours."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x - x.mean(dim=0))


def test_a_network_that_couples_records_is_refused_before_round_1(
    small: Callable[..., Config],
) -> None:
    config = small("privacy=sample", OWN, f"model._target_={HERE}.MixesRecords")
    with pytest.raises(ConfigError, match="couples records"):
        run_federation(config)
