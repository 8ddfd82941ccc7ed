"""The two places where Flower has no public way: an identity for our process, and Ray from Python.

Tested with flwr 1.41; pyproject.toml caps it below the next minor, and a test names the break.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

from flwr.app import Array, Context, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from dp_fedmed.federation.stopping import StopRequest, on_ctrl_c

SERVER_NODE_ID = 1
NUMPY_STYPE = "numpy.ndarray"


def set_identity(run_id: int, node_id: int = SERVER_NODE_ID) -> None:
    """Let this process build `Message`s: their constructor asks for the running task's identity."""
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id = run_id
    TaskIdentity.node_id = node_id
    TaskIdentity.task_id = 1


def set_message_id(message: Any, message_id: str) -> None:
    """Number a message, as the SuperLink does when it takes one in."""
    message.metadata.__dict__["_message_id"] = message_id


def make_array(dtype: str, shape: tuple[int, ...], data: bytes) -> Array:
    """Flower's Array of serialised numpy bytes.

    Its constructor sorts out three ways of calling it, which costs more than the bytes of a small
    layer; a round makes thousands.
    """
    array = Array.__new__(Array)
    array.__dict__.update(dtype=dtype, shape=shape, stype=NUMPY_STYPE, data=data)
    return array


RAY_ADDRESS = "RAY_ADDRESS"  # where Ray itself looks for a cluster
#: Ray binds to loopback where it may not form clusters over a network, and nowhere else.
RAY_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
LOOPBACK = "127.0.0.1"


def make_context(run_id: int, node_id: int, node_config: dict[str, Any]) -> Context:
    """A context as Flower gives it to an app."""
    return Context(
        run_id=run_id, node_id=node_id, node_config=node_config, state=RecordDict(), run_config={}
    )


def run_on_ray(
    server_app: ServerApp,
    client_app: ClientApp,
    *,
    num_clients: int,
    num_cpus: int,
    address: str | None = None,
    stop: StopRequest | None = None,
) -> None:
    """Run both apps on Flower's simulation runtime, started here or on an existing Ray cluster.

    Ctrl-C asks `stop`, for the server app to end by itself: it runs in a thread, and Flower's loop
    would wait for it forever.
    """
    import torch
    from flwr.simulation import run_simulation

    init_args: dict[str, Any] = {"log_to_driver": False, "include_dashboard": False}
    address = address or os.environ.get(RAY_ADDRESS)
    if address is None:
        init_args |= {"num_cpus": num_cpus, "_node_ip_address": LOOPBACK}
    else:
        init_args["address"] = address
    gpus = torch.cuda.device_count() / num_cpus
    here = address is None or address.startswith(LOOPBACK)
    with (
        warnings.catch_warnings(),
        on_ctrl_c(stop or StopRequest(), in_thread=True),
        _ray_on_loopback() if here else nullcontext(),
    ):
        warnings.simplefilter("ignore")
        run_simulation(
            server_app,
            client_app,
            num_supernodes=num_clients,
            backend_config={
                "client_resources": {"num_cpus": 1, "num_gpus": gpus},
                "init_args": init_args,
            },
        )


@contextmanager
def _ray_on_loopback() -> Iterator[None]:
    """While this lasts, a Ray that starts here is heard on this machine alone.

    It asks nobody who they are: on a network, whoever reaches its ports runs code as this user.
    """
    before = {key: os.environ.get(key) for key in RAY_LOOPBACK}
    os.environ.update(RAY_LOOPBACK)  # for its processes; this one reads it when Ray is imported
    from ray._private import ray_constants

    allowed, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = allowed
        for key, value in before.items():
            os.environ.pop(key, None) if value is None else os.environ.update({key: value})
