"""The two baselines: pooled records, and each client alone, through the same rounds and ledger."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from dp_fedmed.assemble import client_runtime, make_work, record_mechanism, serve
from dp_fedmed.config import Config, compose
from dp_fedmed.errors import ConfigError
from dp_fedmed.launch import run_federation
from dp_fedmed.learning.local_only import part_of
from dp_fedmed.run.verify import LedgerView
from dp_fedmed.site.runtime import ClientRuntime
from tests.studies import STUDY

Small = Callable[..., Config]
LOCAL = "federation.topology=local_only"
POOLED = "federation.topology=centralized"


def report_of(path: Path) -> dict[str, Any]:
    return json.loads((path / "privacy_report.json").read_text())  # type: ignore[no-any-return]


def test_the_pool_holds_the_very_records_that_the_clients_train_with(small: Small) -> None:
    settings = ("data.partition.name=dirichlet", "data.partition.alpha=1")
    federated = client_runtime(small(*settings))
    parts = [
        federated.records({"partition-id": number, "num-partitions": 4}) for number in range(4)
    ]
    train, val = client_runtime(small(*settings, POOLED)).records(
        {"partition-id": 0, "num-partitions": 1}
    )
    for pooled, position in ((train, 0), (val, 1)):
        rows = np.concatenate([part[position].x for part in parts])
        assert sorted(map(tuple, pooled.x)) == sorted(map(tuple, rows))


def test_a_patient_is_capped_over_the_whole_pool(small: Small) -> None:
    config = small(
        *("privacy=none", *STUDY, POOLED, "data.group_by=patient", "data.max_records_per_group=3"),
        *("federation.num_rounds=1", "data.client_val_fraction=0"),
    )
    train, _ = client_runtime(config).records({"partition-id": 0, "num-partitions": 1})
    assert train.patient is not None
    assert np.unique(train.patient, return_counts=True)[1].max() == 3


def test_clients_alone_average_to_the_federation_after_one_round(small: Small) -> None:
    """They do the same work on the same records; only what happens to it afterwards differs."""
    settings = ("federation.num_rounds=1", "federation.evaluate_every=0")
    shared = load_file(run_federation(small(*settings)).run_dir / "model.safetensors")
    config = small(*settings, LOCAL)
    alone = load_file(run_federation(config).run_dir / "model.safetensors")
    runtime = client_runtime(config)
    sizes = [
        len(runtime.records({"partition-id": number, "num-partitions": 4})[0])
        for number in range(4)
    ]
    for key, value in shared.items():
        parts = [part_of(alone, f"client-{number:05d}")[key] for number in range(4)]
        np.testing.assert_allclose(np.average(parts, axis=0, weights=sizes), value, atol=1e-6)
    first, second = (part_of(alone, f"client-{number:05d}") for number in (0, 1))
    assert any(not np.array_equal(first[key], second[key]) for key in first)


def test_nothing_reaches_a_client_from_another(small: Small) -> None:
    """A client's model after three rounds is what it would be without the others."""
    settings = ("federation.num_rounds=3", "federation.evaluate_every=0")
    config = small(*settings, LOCAL)
    both = load_file(run_federation(config).run_dir / "model.safetensors")

    class OneClient(ClientRuntime):
        """Answers nothing but zeros for all clients but one."""

        def train(self, message: Any, context: Any) -> Any:
            if context.node_config["partition-id"] != 2:
                raise RuntimeError("this client is away")
            return super().train(message, context)

    from dp_fedmed.client_app import build_client_app
    from dp_fedmed.engines.local_grid import LocalGrid
    from dp_fedmed.reporting.display import LogDisplay

    other = small(*settings, LOCAL)
    runtime = OneClient(other, make_work(other), partial(record_mechanism, other))
    grid = LocalGrid(build_client_app(runtime=runtime), num_clients=4, workers=1)
    alone = load_file(serve(grid, other, LogDisplay()).run_dir / "model.safetensors")
    here, there = part_of(both, "client-00002"), part_of(alone, "client-00002")
    assert all(np.array_equal(here[key], there[key]) for key in here)
    untouched = part_of(alone, "client-00000")
    assert any(not np.array_equal(untouched[key], here[key]) for key in here)


@pytest.mark.parametrize("topology", [LOCAL, POOLED])
def test_a_baseline_is_accounted_as_it_runs(topology: str, small: Small) -> None:
    result = run_federation(small("privacy=sample", "privacy.sample.grad_mode=hooks", topology))
    report = report_of(result.run_dir)
    (guarantee,) = report["guarantees"]
    assert guarantee["epsilon"] == pytest.approx(3.0, abs=0.01)
    assert len(guarantee["clients"]) == (4 if topology == LOCAL else 1)
    total = sum(client["records"] for client in guarantee["clients"].values())
    assert total == 370
    server, recipients = report["observers"]
    assert recipients["record"]["epsilon"] == guarantee["epsilon"]
    assert (server["record"] is None) is (topology == POOLED)
    assert report["topology"] == topology.split("=")[1]
    assert list(LedgerView(result.run_dir).problems()) == []


def test_local_models_are_written_and_their_metrics_summed_up(small: Small) -> None:
    result = run_federation(small(LOCAL))
    described = json.loads((result.run_dir / "clients.json").read_text())
    values = [client["test"]["balanced_accuracy"] for client in described.values()]
    assert result.test["balanced_accuracy"] == pytest.approx(np.mean(values))
    assert result.test["balanced_accuracy/clients_worst"] == min(values)
    assert result.test["balanced_accuracy/clients_best"] == max(values)
    assert result.test["balanced_accuracy/clients_sd"] == pytest.approx(np.std(values, ddof=1))
    whole = load_file(result.run_dir / "model.safetensors")
    for name, client in described.items():
        own = load_file(result.run_dir / client["model"])
        assert all(np.array_equal(own[key], whole[f"{name}/{key}"]) for key in own)
        assert len(own) * len(described) == len(whole)


@pytest.mark.parametrize("optimizer", ["fedavg", "fedavgm"])
def test_clients_alone_are_resumed_exactly_and_on_any_number_of_workers(
    optimizer: str, small: Small
) -> None:
    settings = (LOCAL, f"federation.server_optimizer={optimizer}", "federation.evaluate_every=0")
    short = small(*settings, "federation.num_rounds=2", "engine.workers=2")
    run_federation(short)
    more = [f"run_dir={short.run_dir}", "resume=last", "federation.num_rounds=4"]
    resumed = run_federation(compose(more))
    whole = run_federation(small(*settings, "federation.num_rounds=4"))
    one, two = (load_file(r.run_dir / "model.safetensors") for r in (resumed, whole))
    assert all(np.array_equal(one[key], two[key]) for key in two)


@pytest.mark.parametrize("style", ["none", "sample"])
@pytest.mark.parametrize("topology", [LOCAL, POOLED])
def test_detectors_of_pooled_and_of_single_clients(topology: str, style: str, small: Small) -> None:
    rounds = 1 if style == "none" else 2
    config = small(
        *("task=textures", f"privacy={style}", topology, "data.num_records=60"),
        *("data.image_size=32", "federation.num_clients=2", f"federation.num_rounds={rounds}"),
        "anomaly.coreset_size=60",
    )
    result = run_federation(config)
    assert result.test["image_auroc"] > 0.4
    assert ("image_auroc/clients_worst" in result.test) is (topology == LOCAL)
    if style == "sample":
        (guarantee,) = report_of(result.run_dir)["guarantees"]
        assert guarantee["noise_added_by"] == "each client"
        assert guarantee["epsilon"] == pytest.approx(3.0, abs=0.01)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ([POOLED, "privacy=user"], "there is no client to hide"),
        ([LOCAL, "privacy=hybrid"], "cannot hide among others"),
        ([POOLED, "federation.sample_rate=0.5"], "there is one site"),
        ([LOCAL, "task=textures", "federation.sample_rate=0.5"], "has no detector of its own"),
    ],
)
def test_what_a_baseline_cannot_have_is_refused(overrides: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        compose(overrides)


def test_a_run_does_not_change_its_topology(small: Small) -> None:
    config = small("federation.num_rounds=1")
    run_federation(config)
    with pytest.raises(ConfigError, match=r"federation\.topology"):
        compose([f"run_dir={config.run_dir}", "resume=last", LOCAL, "federation.num_rounds=2"])


def test_groups_set_the_topology_and_leave_the_recipe_alone() -> None:
    config = compose(["task=cells", "privacy=sample", "federation=centralized"])
    plain = compose(["task=cells", "privacy=sample"])
    assert str(config.federation.topology) == "centralized"
    assert config.federation.num_rounds == plain.federation.num_rounds
    assert config.federation.server_optimizer is plain.federation.server_optimizer
