"""The local engine: order, failures, time-outs, memory of clients; in process and on workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from dp_fedmed.engines.local_grid import FIRST_NODE_ID, LocalGrid
from dp_fedmed.errors import NodeError
from dp_fedmed.federation.nodes import wait_for_nodes
from tests.runs import apps


def ask(grid: LocalGrid, timeout: float | None = None) -> list[Message]:
    content = RecordDict({"arrays": apps.model_record()})
    messages = [Message(content, node_id, "train") for node_id in grid.get_node_ids()]
    return list(grid.send_and_receive(messages, timeout=timeout))


@pytest.fixture
def grid_of(request: pytest.FixtureRequest):
    made: list[LocalGrid] = []

    def make(app: ClientApp, workers: int, clients: int = 6) -> LocalGrid:
        grid = LocalGrid(app, num_clients=clients, workers=workers)
        made.append(grid)
        return grid

    yield make
    for grid in made:
        grid.close()
    assert not [c for c in psutil.Process().children() if c.status() != "zombie"]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_replies_come_in_the_order_of_the_messages(grid_of, workers: int) -> None:
    replies = ask(grid_of(apps.app_of(apps.slow_first), workers))
    assert [r.metadata.src_node_id for r in replies] == list(
        range(FIRST_NODE_ID, FIRST_NODE_ID + 6)
    )
    values = [float(r.content["arrays"]["w"].numpy()[0, 0]) for r in replies]
    assert values == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("workers", [1, 2])
def test_an_exception_costs_one_reply_and_tells_no_path(grid_of, workers: int) -> None:
    replies = ask(grid_of(apps.app_of(apps.raises), workers))
    assert [r.has_error() for r in replies] == [False, True, False, False, False, False]
    assert "FileNotFoundError" in replies[1].error.reason
    assert "jane" not in replies[1].error.reason


def test_a_worker_that_dies_is_replaced_and_costs_one_reply(grid_of) -> None:
    grid = grid_of(apps.app_of(apps.dies), 2)
    for _ in range(3):
        replies = ask(grid)
        assert [r.has_error() for r in replies] == [False, True, False, False, False, False]
        assert "exit code -9" in replies[1].error.reason


def introducing_app(tries: Path, deaths: int) -> ClientApp:
    """Its second client takes its worker down the first few times that it is asked for its name."""
    app = ClientApp()

    @app.query("name")
    def name(message: Message, context: Context) -> Message:
        number = int(context.node_config["partition-id"])
        if number == 1 and len(list(tries.iterdir())) < deaths:
            (tries / str(time.monotonic_ns())).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        told = ConfigRecord({"name": f"client-{number}"})
        return Message(RecordDict({"client": told}), reply_to=message)

    return app


def test_a_worker_that_dies_while_names_are_asked_is_asked_again(grid_of, tmp_path: Path) -> None:
    grid = grid_of(introducing_app(tmp_path, 2), 2)
    nodes = wait_for_nodes(grid, expected=6, timeout=20, ask_all=True)
    assert sorted(nodes) == [f"client-{n}" for n in range(6)]


def test_a_client_whose_worker_always_dies_is_named(grid_of, tmp_path: Path) -> None:
    grid = grid_of(introducing_app(tmp_path, 99), 2)
    with pytest.raises(NodeError, match=r"node 101 did not tell its name: .* died"):
        wait_for_nodes(grid, expected=6, timeout=20, ask_all=True)
    assert len(list(tmp_path.iterdir())) == 3


def test_a_worker_killed_while_idle_costs_nothing(grid_of) -> None:
    grid = grid_of(apps.app_of(apps.add_partition_number), 2)
    ask(grid)
    for child in psutil.Process().children():
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    assert not any(r.has_error() for r in ask(grid))


def test_a_late_client_costs_one_reply_and_its_worker(grid_of) -> None:
    grid = grid_of(apps.app_of(apps.sleeps), 2)
    started = time.monotonic()
    replies = ask(grid, timeout=1.5)
    assert time.monotonic() - started < 5.0
    failed = [i for i, r in enumerate(replies) if r.has_error()]
    assert 1 in failed
    assert replies[1].error.reason == "timed out"
    assert 0 not in failed
    assert 5 not in failed, "the other worker goes on while one hangs"
    assert len(psutil.Process().children()) <= 2


@pytest.mark.parametrize("workers", [1, 2])
def test_a_clients_state_lasts_from_round_to_round(grid_of, workers: int) -> None:
    grid = grid_of(apps.remembering_app(), workers, clients=5)
    for expected in (1, 2, 3):
        assert [r.content["metrics"]["seen"] for r in ask(grid)] == [expected] * 5


def test_a_model_that_grows_between_rounds_is_sent_whole(grid_of) -> None:
    grid = grid_of(apps.app_of(apps.add_partition_number), 2)
    for size in (10, 100_000, 50):
        arrays = apps.model_arrays.to_record({"w": np.zeros(size, np.float32)})
        content = RecordDict({"arrays": arrays})
        messages = [Message(content, node_id, "train") for node_id in grid.get_node_ids()]
        replies = list(grid.send_and_receive(messages))
        assert [r.content["arrays"]["w"].numpy().sum() for r in replies] == [
            number * size for number in range(6)
        ]


def test_a_reply_larger_than_the_model_arrives(grid_of) -> None:
    def grow(number: int, model: dict[str, np.ndarray]) -> RecordDict:
        return apps.good({"w": np.full(1_000_000, number, np.float32)})

    replies = ask(grid_of(apps.app_of(grow), 2))
    assert [int(r.content["arrays"]["w"].numpy()[-1]) for r in replies] == list(range(6))


def test_messages_of_their_own_arrays_arrive_too(grid_of) -> None:
    grid = grid_of(apps.app_of(apps.add_partition_number), 2)
    messages = [
        Message(
            RecordDict({"arrays": apps.model_arrays.to_record({"w": np.zeros(n + 1, np.float32)})}),
            node_id,
            "train",
        )
        for n, node_id in enumerate(grid.get_node_ids())
    ]
    sizes = [r.content["arrays"]["w"].numpy().size for r in grid.send_and_receive(messages)]
    assert sizes == [1, 2, 3, 4, 5, 6]


def test_push_and_pull_hand_out_each_reply_once(grid_of) -> None:
    grid = grid_of(apps.app_of(apps.add_partition_number), 1)
    content = RecordDict({"arrays": apps.model_record()})
    ids = list(grid.push_messages([Message(content, FIRST_NODE_ID, "train")]))
    assert len(list(grid.pull_messages(ids))) == 1
    assert list(grid.pull_messages(ids)) == []


def test_a_node_that_does_not_exist_is_an_error(grid_of) -> None:
    grid = grid_of(apps.app_of(apps.add_partition_number), 1)
    with pytest.raises(ValueError, match="no node 7"):
        list(grid.send_and_receive([Message(RecordDict(), 7, "train")]))


LEFT_OPEN = """
import os, signal, sys
from dp_fedmed.engines.local_grid import LocalGrid
from tests.runs import apps
from tests.engines.test_local_grid import ask
import psutil
grid = LocalGrid(apps.app_of(apps.add_partition_number), num_clients=2, workers=2)
assert len(ask(grid)) == 2
children = psutil.Process().children()
for child in children:
    os.kill(child.pid, signal.SIGTERM)
assert not any(reply.has_error() for reply in ask(grid))
assert psutil.Process().children() == children, "workers ignore it"
print(*(child.pid for child in children), flush=True)
if sys.argv[1] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(("end", "code"), [("exits", 0), ("killed", -signal.SIGKILL)])
def test_workers_that_ignore_sigterm_do_not_outlive_their_parent(end: str, code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEFT_OPEN, end], stdout=subprocess.PIPE, text=True, timeout=60
    )
    assert done.returncode == code
    workers = [int(pid) for pid in done.stdout.split()]
    assert len(workers) == 2
    deadline = time.monotonic() + 10
    while any(psutil.pid_exists(pid) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    alive = [p for p in workers if psutil.pid_exists(p)]
    assert all(psutil.Process(p).status() == psutil.STATUS_ZOMBIE for p in alive)
