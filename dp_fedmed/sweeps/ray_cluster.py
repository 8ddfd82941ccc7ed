"""One Ray for all jobs of a sweep: it takes seconds to start."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from dp_fedmed.federation.flower_compat import RAY_ADDRESS, RAY_LOOPBACK

# In a process of its own: one that has used Ray must not fork workers.
_KEEP = """
import sys
import ray
quiet = {"include_dashboard": False, "log_to_driver": False}
ray.init(num_cpus=int(sys.argv[1]), _node_ip_address="127.0.0.1", **quiet)
print(ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
ray.shutdown()
"""
SECONDS_TO_STOP = 30.0


@contextmanager
def ray_cluster(num_cpus: int) -> Iterator[None]:
    """While this lasts, runs on Ray find a cluster that is up already, on this machine alone."""
    keeper = subprocess.Popen(
        [sys.executable, "-c", _KEEP, str(num_cpus)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        env={**os.environ, **RAY_LOOPBACK},
    )
    try:
        address = keeper.stdout.readline().strip() if keeper.stdout is not None else ""
        if address:  # without one each run starts its own, and says what is wrong
            os.environ[RAY_ADDRESS] = address
        yield
    finally:
        os.environ.pop(RAY_ADDRESS, None)
        if keeper.stdin is not None:
            keeper.stdin.close()
        try:
            keeper.wait(SECONDS_TO_STOP)
        except subprocess.TimeoutExpired:
            keeper.kill()
            keeper.wait()
