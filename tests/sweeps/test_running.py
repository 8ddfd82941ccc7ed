"""How a job of a sweep is run."""

from __future__ import annotations

from dp_fedmed.config import compose
from dp_fedmed.sweeps.running import with_workers


def test_the_last_jobs_use_idle_cores_unless_settings_or_threads_forbid() -> None:
    assert with_workers(compose(), 2).engine.workers == 2
    assert with_workers(compose(["engine.workers=1"]), 2).engine.workers == 1
    assert with_workers(compose(["training.threads=2"]), 2).engine.workers == 1
    ray = compose(["engine=ray"])
    assert with_workers(ray, 2) == ray
