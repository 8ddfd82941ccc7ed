"""A round with clients that do nothing: what the engine itself costs, local against Ray."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from bench.rows import Row
from dp_fedmed.engines.local_grid import LocalGrid
from dp_fedmed.federation import arrays as model_arrays
from dp_fedmed.federation.flower_compat import run_on_ray

SIZES = {"10k": (10_000, 10, 1.0), "1M": (1_000_000, 20, 5.0), "10M": (10_000_000, 60, 50.0)}
CLIENTS, ROUNDS = 20, 4


def idle_client_app() -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays = message.content.array_records["arrays"]
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    return app


def model_of(parameters: int, tensors: int) -> ArrayRecord:
    rng = np.random.default_rng(0)
    shape = parameters // tensors
    return model_arrays.to_record(
        {f"layer{i}": rng.normal(size=shape).astype(np.float32) for i in range(tensors)}
    )


def one_round(grid: Grid, arrays: ArrayRecord) -> None:
    """Send a model to every node, check each answer, add them up: as the strategy does."""
    model = model_arrays.from_record(arrays)
    total = {name: np.zeros(value.shape) for name, value in model.items()}
    content = RecordDict({"arrays": arrays, "config": ConfigRecord({"round": 1})})
    messages = [Message(content, node_id, "train") for node_id in grid.get_node_ids()]
    for reply in grid.send_and_receive(messages):
        for name, value in model_arrays.checked(reply.content["arrays"], model).items():
            total[name] += value


def seconds_per_client(grid: Grid, arrays: ArrayRecord) -> float:
    one_round(grid, arrays)
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        one_round(grid, arrays)
        times.append(time.perf_counter() - started)
    return min(times) / len(list(grid.get_node_ids()))


def on_local(workers: int) -> tuple[dict[str, float], float]:
    """Seconds per client and round by model size, and seconds until the first answer."""
    costs, starts = {}, []
    for name, (parameters, tensors, _) in SIZES.items():
        arrays = model_of(parameters, tensors)
        started = time.perf_counter()
        grid = LocalGrid(idle_client_app(), num_clients=CLIENTS, workers=workers)
        try:
            next(iter(grid.send_and_receive([_hello(grid, arrays)])))
            starts.append(time.perf_counter() - started)
            costs[name] = seconds_per_client(grid, arrays)
        finally:
            grid.close()
    return costs, starts[0]


def _hello(grid: Grid, arrays: ArrayRecord) -> Message:
    return Message(RecordDict({"arrays": arrays}), next(iter(grid.get_node_ids())), "train")


def on_ray(workers: int) -> tuple[dict[str, float], float]:
    """The same on Flower's simulation runtime."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    costs: dict[str, float] = {}
    begun = time.perf_counter()
    starts: list[float] = []
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        while len(list(grid.get_node_ids())) < CLIENTS:
            time.sleep(0.01)
        for name, (parameters, tensors, _) in SIZES.items():
            arrays = model_of(parameters, tensors)
            if not starts:
                list(grid.send_and_receive([_hello(grid, arrays)]))
                starts.append(time.perf_counter() - begun)
            costs[name] = seconds_per_client(grid, arrays)

    run_on_ray(app, idle_client_app(), num_clients=CLIENTS, num_cpus=workers)
    return costs, starts[0]


def rows(ray: Callable[[int], tuple[dict[str, float], float]] = on_ray) -> list[Row]:
    pool, pool_start = on_local(2)
    inside, inside_start = on_local(1)
    flower, flower_start = ray(2)
    result = [
        Row("local, in process: start", inside_start, 0.2, "s"),
        Row("local, 2 workers: start", pool_start, 0.2, "s"),
        Row("Ray: start", flower_start, None, "s"),
    ]
    for name, (_, _, target) in SIZES.items():
        result += [
            Row(f"local, in process: client and round at {name}", inside[name] * 1e3, target, "ms"),
            Row(f"local, 2 workers: client and round at {name}", pool[name] * 1e3, target, "ms"),
            Row(f"Ray: client and round at {name}", flower[name] * 1e3, None, "ms"),
            Row(
                f"local / Ray, idle round at {name}",
                pool[name] / flower[name],
                1 / 3 if name == "10k" else None,
            ),
        ]
    return result
