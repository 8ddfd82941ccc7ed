"""One process as any of the clients: what it refuses, and whose records it uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, Message, RecordDict

from dp_fedmed.assemble import client_runtime
from dp_fedmed.config import Config
from dp_fedmed.data import load_data
from dp_fedmed.errors import ArrayError, ConfigError, SiteRefused
from dp_fedmed.federation import RecordOrder, RoundOrder
from dp_fedmed.federation import arrays as model_arrays
from dp_fedmed.federation.flower_compat import make_context, set_identity, set_message_id
from dp_fedmed.planning.plan import round_shape
from dp_fedmed.privacy.streams.keys import LEDGER_KEY_FILE, SECRET_FOLDER, MacKey, key_file
from dp_fedmed.privacy.streams.noise import NoiseKey
from dp_fedmed.site.runtime import ClientRuntime

SHAPE, CLASSES, COUNT = (30,), 2, 4
NODE: dict[str, Any] = {"partition-id": 1, "num-partitions": COUNT}
SMALL = ("model._target_=dp_fedmed.models.MLP", "model.args.hidden=[4]")


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def config(small: Callable[..., Config]) -> Config:
    made = small("privacy=sample", *SMALL, "privacy.sample.grad_mode=hooks")
    secrets = Path(made.run_dir) / SECRET_FOLDER
    secrets.mkdir(parents=True)
    NoiseKey.create(key_file(made.run_dir, phase=0))
    MacKey.create(secrets / LEDGER_KEY_FILE)
    return made


def order_of(style: str = "sample", **more: Any) -> RoundOrder:
    by = "nobody" if style == "none" else "client"
    held: dict[str, Any] = {"server_round": 1, "ledger": 3, "noised_by": by}
    return RoundOrder(
        input_shape=SHAPE, num_classes=CLASSES, run="r", streams="s", phase=0, style=style,
        **held | more,
    )  # fmt: skip


def sent(
    order: RoundOrder, model: model_arrays.State | None = None, node: dict[str, Any] | None = None
) -> tuple[Message, Context]:
    set_identity(run_id=1)
    content = RecordDict({"config": order.to_record()})
    if model is not None:
        content["arrays"] = model_arrays.to_record(model)
    message = Message(content, 1, "train")
    set_message_id(message, "m")
    return message, make_context(1, 1, NODE if node is None else node)


def built(config: Config) -> tuple[ClientRuntime, model_arrays.State]:
    runtime = client_runtime(config)
    runtime.preload(COUNT)
    return runtime, runtime.work.expected() or {}


@pytest.mark.parametrize("work", [ClientRuntime.check, ClientRuntime.train])
def test_a_server_with_another_promise_gets_nothing(
    work: Callable[..., object], config: Config
) -> None:
    runtime, model = built(config)
    for style in ("none", "user", "hybrid"):
        with pytest.raises(ConfigError, match=f"privacy.style='{style}', this client sample"):
            work(runtime, *sent(order_of(style), model))
        with pytest.raises(ConfigError, match=r"noise by 'server'.*same privacy\.noise"):
            work(runtime, *sent(order_of(noised_by="server"), model))


def test_records_are_never_trained_on_without_an_order_for_their_noise(config: Config) -> None:
    runtime, model = built(config)
    for work in (runtime.check, runtime.train):
        with pytest.raises(ConfigError, match="no noise_multiplier for our records"):
            work(*sent(order_of(), model))


@pytest.mark.parametrize(
    ("key", "missing"), [("round", {"server_round": None}), ("ledger", {"ledger": None})]
)
def test_an_order_without_its_round_or_ledger_is_refused(
    key: str, missing: dict[str, None], config: Config
) -> None:
    runtime, model = built(config)
    records, _ = runtime.records(NODE)
    q, steps = round_shape(config, len(records))
    asked = RecordOrder(noise_multiplier=2.0, sample_rate=q, steps=steps, grad_mode="hooks")
    with pytest.raises(ConfigError, match=f"round order has no {key}"):
        runtime.train(*sent(order_of(records=asked, **missing), model))


@pytest.mark.parametrize(
    ("unlike", "said"),
    [
        ({"input_shape": (29,)}, r"shape \[29\] and 2 classes, this client's shape \[30\]"),
        ({"num_classes": 1}, "class ids go from 0 to 1"),
    ],
)
def test_records_that_do_not_fit_the_servers_are_refused_before_a_network_is_built(
    unlike: dict[str, Any], said: str, config: Config
) -> None:
    runtime = client_runtime(config)
    with pytest.raises(SiteRefused, match=said):
        runtime.check(*sent(replace(order_of(), **unlike)))
    assert not hasattr(runtime.work, "model")


def test_a_model_of_another_network_is_refused(small: Callable[..., Config]) -> None:
    runtime, model = built(small(*SMALL))
    name = next(iter(model))
    for other in (
        {**model, name: np.zeros((1, 1), np.float32)},
        {**model, name: np.full_like(model[name], np.nan)},
        {key: value for key, value in model.items() if key != name},
    ):
        with pytest.raises(ArrayError):
            runtime.train(*sent(order_of("none"), other))


def test_partitions_have_records_of_their_own_and_together_all(config: Config) -> None:
    runtime = client_runtime(config)
    data = load_data(config.data, seed=config.seed)
    rows: list[bytes] = []
    for number in range(COUNT):
        for records in runtime.records({"partition-id": number, "num-partitions": COUNT}):
            rows += [row.tobytes() for row in records.x]
    assert sorted(rows) == sorted(row.tobytes() for row in data.train.x)
    first, _ = runtime.records(NODE)
    again, _ = client_runtime(config).records(NODE)
    assert np.array_equal(first.x, again.x), "in any process"


def test_an_unprotected_client_answers_with_its_change_and_its_size(
    small: Callable[..., Config],
) -> None:
    runtime, model = built(small(*SMALL))
    answer = runtime.train(*sent(order_of("none"), model))
    records, _ = runtime.records(NODE)
    assert answer.metric_records["metrics"]["num-examples"] == len(records)
    assert "privacy" not in answer
    update = model_arrays.from_record(answer.array_records["arrays"])
    assert update.keys() == model.keys()
    assert any(value.any() for value in update.values())


def test_a_protected_client_pays_in_its_own_ledger_and_says_what_it_did(config: Config) -> None:
    runtime, model = built(config)
    records, _ = runtime.records(NODE)
    q, steps = round_shape(config, len(records))
    asked = RecordOrder(noise_multiplier=50.0, sample_rate=q, steps=steps, grad_mode="hooks")
    runtime.check(*sent(order_of(records=asked)))
    private = Path(config.run_dir) / "private"
    assert not list(private.rglob("*.jsonl")), "to be asked costs nothing"
    answer = runtime.train(*sent(order_of(records=asked), model))
    paid = dict(answer.config_records["privacy"])
    assert paid == {"noise_multiplier": 50.0, "sample_rate": q, "steps": steps, "charges": 1}
    assert "train_loss" not in answer.metric_records["metrics"], "it would be a release"
    assert [file.stem for file in private.rglob("*.jsonl")] == ["client-00001"]


def test_a_site_with_a_limit_does_not_tell_its_metrics(small: Callable[..., Config]) -> None:
    runtime, model = built(small(*SMALL))
    site = {"client-id": "north", "data-path": "/mnt/scans", "max-epsilon": 3.0}
    with pytest.raises(ConfigError, match="max-epsilon=3"):
        runtime.evaluate(*sent(order_of("none"), model, site))
    told = runtime.evaluate(*sent(order_of("none"), model)).metric_records["metrics"]
    assert 0.0 <= float(told["accuracy"]) <= 1.0  # type: ignore[arg-type]


def test_a_site_of_its_own_is_not_pooled(small: Callable[..., Config]) -> None:
    runtime = client_runtime(small("federation.topology=centralized"))
    with pytest.raises(ConfigError, match=r"use federation\.topology=federated"):
        runtime.records({"client-id": "north"})
