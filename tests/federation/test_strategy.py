"""One round: what goes into the sum, in which order, and what happens to unfit replies."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

from dp_fedmed.config import ServerOptimizerName
from dp_fedmed.engines.local_grid import LocalGrid
from dp_fedmed.errors import TooFewClients
from dp_fedmed.federation import arrays as model_arrays
from dp_fedmed.federation.nodes import wait_for_nodes
from dp_fedmed.federation.rounds import RoundRecord, RoundSettings
from dp_fedmed.federation.sampling import AllSampler
from dp_fedmed.federation.server_optimizer import ServerOptimizer
from dp_fedmed.federation.strategy import DPStrategy
from tests.federation.observed import Kept
from tests.runs import apps

CLIENTS = 4


class ShuffledGrid(LocalGrid):
    """Replies in reverse order, some of them twice, one never: as a network may have it."""

    lost: int | None = None

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        replies = list(super().send_and_receive(messages, timeout=timeout))
        kept = [r for i, r in enumerate(replies) if i != self.lost]
        return [*reversed(kept), kept[0]]


def node_ids(grid: LocalGrid) -> dict[str, int]:
    nodes = wait_for_nodes(grid, expected=CLIENTS, timeout=1)
    return {name: node.node_id for name, node in nodes.items()}


def run(
    answer: apps.Answer,
    *,
    grid_type: type[LocalGrid] = LocalGrid,
    rounds: int = 1,
    lost: int | None = None,
    step: ServerOptimizer | None = None,
    **settings: Any,
) -> tuple[model_arrays.State, list[RoundRecord]]:
    grid = grid_type(apps.app_of(answer), num_clients=CLIENTS, workers=1)
    grid.lost = lost  # type: ignore[attr-defined]
    records: list[RoundRecord] = []
    strategy = DPStrategy(
        RoundSettings(num_rounds=rounds, **settings),
        nodes=node_ids(grid),
        sampler=AllSampler(rate=1.0),
        step=step,
        observer=Kept(records.append),
        seed=0,
    )
    result = strategy.start(grid, apps.model_record(), num_rounds=rounds)
    assert isinstance(result.arrays, ArrayRecord)
    return model_arrays.from_record(result.arrays), records


def weighted(number: int, model: dict[str, np.ndarray]) -> RecordDict:
    update = {name: np.full_like(value, number) for name, value in model.items()}
    return apps.good(update, examples=float(number))


def test_uniform_weights_give_the_mean_of_the_updates() -> None:
    model, _ = run(weighted, weight_by_examples=False)
    assert np.allclose(model["w"], (0 + 1 + 2 + 3) / 4)


def test_example_weights_give_the_mean_over_records() -> None:
    model, _ = run(weighted, weight_by_examples=True)
    assert np.allclose(model["w"], (0 * 0 + 1 * 1 + 2 * 2 + 3 * 3) / 6)


def test_the_order_of_arrival_does_not_change_a_bit() -> None:
    def noisy(number: int, model: dict[str, np.ndarray]) -> RecordDict:
        rng = np.random.default_rng(number)
        return apps.good(
            {n: rng.normal(size=v.shape).astype(np.float32) for n, v in model.items()},
            examples=float(rng.integers(1, 99)),
        )

    straight, _ = run(noisy, rounds=3)
    shuffled, _ = run(noisy, rounds=3, grid_type=ShuffledGrid)
    assert all(np.array_equal(straight[name], shuffled[name]) for name in straight)


def spoil(change: Callable[[RecordDict], None]) -> apps.Answer:
    def answer(number: int, model: dict[str, np.ndarray]) -> RecordDict:
        content = apps.add_partition_number(number, model)
        if number == 2:
            change(content)
        return content

    return answer


def _nan(content: RecordDict) -> None:
    content["arrays"] = model_arrays.to_record(
        {**apps.MODEL, "b": np.array([np.nan, 0], np.float32)}
    )


def _extra(content: RecordDict) -> None:
    content["arrays"]["more"] = content["arrays"]["b"]  # type: ignore[index]


def _count(value: float) -> Callable[[RecordDict], None]:
    return lambda content: content["metrics"].__setitem__("num-examples", value)  # type: ignore[index]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_nan, "NaN"),
        (_extra, "'more' is not in the model"),
        (lambda c: c.pop("arrays"), "has no 'arrays'"),
        (lambda c: c.pop("metrics"), "has no 'metrics'"),
        (_count(-5), "num-examples=-5"),
        (_count(2.5), "num-examples=2.5"),
        (_count(float("inf")), "'num-examples' is not a finite number"),
    ],
)
def test_an_unfit_reply_costs_its_contribution_and_one_warning(
    change: Callable[[RecordDict], None], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="dp_fedmed"):
        model, records = run(spoil(change))
    assert np.allclose(model["w"], (0 + 1 + 3) / 3)
    assert list(records[-1].failed) == ["client-00002"]
    warnings = [r for r in caplog.records if "client-00002" in r.getMessage()]
    assert len(warnings) == 1
    assert said in warnings[0].getMessage()


def test_a_client_that_never_answers_costs_its_contribution() -> None:
    model, records = run(apps.add_partition_number, grid_type=ShuffledGrid, lost=3)
    assert np.allclose(model["w"], (0 + 1 + 2) / 3)
    assert records[-1].failed == {"client-00003": "no reply in time"}


def test_too_few_clients_stop_the_run_with_the_last_model() -> None:
    with pytest.raises(TooFewClients, match=r"3 of 4 clients.*federation\.min_clients=4"):
        run(spoil(_nan), min_clients=4)
    run(spoil(_nan), min_clients=3)


def test_a_round_in_which_nobody_has_records_leaves_the_model() -> None:
    def empty(number: int, model: dict[str, np.ndarray]) -> RecordDict:
        return apps.good(dict(model), examples=0.0)

    model, _ = run(empty)
    assert np.array_equal(model["w"], apps.MODEL["w"])


def step_by_hand(name: ServerOptimizerName, updates: list[float]) -> float:
    """Reddi et al. 2021, algorithm 2, one coordinate."""
    x = momentum = 0.0
    tau, beta1, beta2, lr = 1e-3, 0.9, 0.99, 0.1
    second = tau**2
    for update in updates:
        if name is ServerOptimizerName.fedavg:
            x += lr * update
        elif name is ServerOptimizerName.fedavgm:
            momentum = beta1 * momentum + update
            x += lr * momentum
        else:
            momentum = beta1 * momentum + (1 - beta1) * update
            second = beta2 * second + (1 - beta2) * update**2
            x += lr * momentum / (second**0.5 + tau)
    return x


@pytest.mark.parametrize("name", list(ServerOptimizerName))
def test_server_optimizers_follow_the_paper(name: ServerOptimizerName) -> None:
    model, _ = run(apps.add_partition_number, rounds=3, step=ServerOptimizer(str(name), lr=0.1))
    assert np.allclose(model["w"], step_by_hand(name, [1.5, 1.5, 1.5]), rtol=1e-5)


def test_clients_metrics_are_averaged_over_their_records() -> None:
    def metrics_of(settings: RoundSettings) -> tuple[MetricRecord, RoundRecord]:
        grid = LocalGrid(apps.app_of(apps.add_partition_number), num_clients=CLIENTS, workers=1)
        records: list[RoundRecord] = []
        strategy = DPStrategy(
            settings,
            nodes=node_ids(grid),
            sampler=AllSampler(rate=1.0),
            observer=Kept(records.append),
            seed=0,
        )
        result = strategy.start(grid, apps.model_record(), num_rounds=1)
        return result.evaluate_metrics_clientapp[1], records[-1]

    average, record = metrics_of(RoundSettings(num_rounds=1, client_evaluate_every=1))
    assert average["accuracy"] == pytest.approx((0.1 * 1 + 0.2 * 2 + 0.3 * 3) / 6)
    assert list(record.client_metrics) == ["client-00001", "client-00002", "client-00003"]
    _, few = metrics_of(RoundSettings(num_rounds=1, client_evaluate_every=1, client_evaluate_max=2))
    assert len(few.client_metrics) <= 2
