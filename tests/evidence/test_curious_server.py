"""What a curious server has after its rounds with one site."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dp_fedmed.assemble import client_runtime
from dp_fedmed.config import Config
from dp_fedmed.errors import ConfigError
from dp_fedmed.evidence.curious_server import observe

TINY = ("model._target_=dp_fedmed.models.MLP", "model.args.hidden=[4]", "federation.num_clients=2")


def test_it_sees_the_model_sent_and_one_answer_each_round(small: Callable[..., Config]) -> None:
    config = small(*TINY, "federation.num_rounds=2")
    seen = observe(config)
    assert len(seen.answers) == 2
    for answer in seen.answers:
        assert {name: value.shape for name, value in answer.items()} == {
            name: value.shape for name, value in seen.sent.items()
        }
    own, _ = client_runtime(config).records({"partition-id": 0, "num-partitions": 2})
    assert np.array_equal(seen.records.x, own.x)


def test_a_site_that_cannot_train_is_no_observation(
    small: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    from dp_fedmed.learning.networks.learner import NetworkWork

    def fails(*_: object) -> None:
        raise ValueError("nothing")

    monkeypatch.setattr(NetworkWork, "train", fails)
    with pytest.raises(ConfigError, match="the first site does not train: ValueError"):
        observe(small(*TINY))
