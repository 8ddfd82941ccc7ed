"""Canaries that go through the task's own network."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dp_fedmed.config import Config
from dp_fedmed.evidence.audit import (
    CanaryKind,
    Options,
    audit,
)
from tests.evidence.test_audit import client_level, record_level


@pytest.mark.parametrize("level", [record_level, client_level])
def test_black_box_canaries_go_through_the_tasks_own_network(
    level: Callable[..., Config],
) -> None:
    config = level("task=digits", "federation.num_clients=60", "federation.server_lr=1")
    found = audit(config, Options(kind=CanaryKind.black_box, seed=0))
    (only,) = found.findings
    assert not only.verdict.is_finding
    assert np.ptp(only.scores) > 0
    assert only.attacked["network"] == config.model._target_
