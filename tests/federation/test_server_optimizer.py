"""The server's step: its moments, and that it goes on from them."""

from __future__ import annotations

import numpy as np
import pytest

from dp_fedmed.config import ServerOptimizerName
from dp_fedmed.federation.server_optimizer import SERVER_OPTIMIZERS, ServerOptimizer

MODEL = {"w": np.array([1.0, -2.0], np.float32)}
UPDATE = {"w": np.array([0.5, -1.0])}


def optimizer(name: ServerOptimizerName, lr: float = 1.0) -> ServerOptimizer:
    return ServerOptimizer(str(name), lr=lr)


def test_fedavg_adds_the_average_and_keeps_nothing() -> None:
    plain = optimizer(ServerOptimizerName.fedavg, lr=0.5)
    assert plain.step(MODEL, UPDATE)["w"].tolist() == [1.25, -2.5]
    assert plain.moments() == {}


def test_momentum_carries_updates_on() -> None:
    heavy = optimizer(ServerOptimizerName.fedavgm)
    once = heavy.step(MODEL, UPDATE)
    again = heavy.step(once, {"w": np.zeros(2)})
    assert once["w"] == pytest.approx([1.5, -3.0])
    assert again["w"] - once["w"] == pytest.approx(heavy.beta1 * UPDATE["w"], rel=1e-6)


@pytest.mark.parametrize("name", ServerOptimizerName)
def test_a_restored_optimizer_goes_on_to_the_same_bytes(name: ServerOptimizerName) -> None:
    first, second = optimizer(name), optimizer(name)
    model = first.step(MODEL, UPDATE)
    second.restore(first.moments())
    ends = [each.step(model, UPDATE)["w"] for each in (first, second)]
    assert ends[0].tobytes() == ends[1].tobytes()
    assert ends[0].dtype == np.float32, "the model's own type"


def test_adams_step_does_not_depend_on_the_size_of_updates() -> None:
    steps = []
    for scale in (1.0, 1000.0):
        adam = optimizer(ServerOptimizerName.fedadam, lr=0.1)
        steps.append(adam.step(MODEL, {"w": scale * UPDATE["w"]})["w"] - MODEL["w"])
    assert steps[0] == pytest.approx(steps[1], rel=0.05)


def test_every_configured_name_is_known_and_no_other() -> None:
    assert set(SERVER_OPTIMIZERS) == {str(name) for name in ServerOptimizerName}
    with pytest.raises(ValueError, match="name='sgd' is not one of fedavg, fedavgm, fedadam"):
        ServerOptimizer("sgd")
