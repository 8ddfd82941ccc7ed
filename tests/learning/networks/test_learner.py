"""A network at the server and at a client: what is answered, and what must never be."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import nn

from dp_fedmed.data import DataSet, Records
from dp_fedmed.errors import ConfigError
from dp_fedmed.learning.base import LocalRound, State
from dp_fedmed.learning.networks import learner as networks
from dp_fedmed.learning.networks.learner import ModelState, NetworkLearner, NetworkWork
from dp_fedmed.learning.networks.local_training import LocalResult, LocalTraining
from dp_fedmed.learning.networks.per_sample import NetworkKeepsState
from dp_fedmed.learning.networks.task import make_task
from dp_fedmed.privacy.mechanisms.dp_sgd import DPSGD
from dp_fedmed.privacy.streams import RoundStreams
from dp_fedmed.privacy.streams.noise import NoiseKey

TASK = make_task("classification", "cross_entropy")


class Counting(nn.Module):
    """A layer, a frozen weight, and a buffer that counts the records it saw."""

    seen: torch.Tensor

    def __init__(self, shape: Sequence[int], classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(shape[0], classes)
        self.frozen = nn.Parameter(torch.ones(1), requires_grad=False)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen += len(x)
        out: torch.Tensor = self.linear(x)
        return out


def plain(shape: Sequence[int], classes: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(shape[0], classes)


def blobs(n: int = 40) -> Records:
    y = np.arange(n) % 2
    x = np.random.default_rng(0).normal(size=(n, 4)) + 3.0 * y[:, None]
    return Records(x.astype(np.float32), y.astype(np.int64))


def data() -> DataSet:
    return DataSet(blobs(), blobs(10), blobs(20), num_classes=2, class_names=("no", "yes"))


def mechanism(**more: object) -> DPSGD:
    held = {"noise_multiplier": 1.0, "sample_rate": 0.5, "steps": 2, "max_grad_norm": 1.0}
    how = {"grad_mode": "hooks", "physical_batch_size": 64}
    return DPSGD(**held | how | more)  # type: ignore[arg-type]


def streams() -> RoundStreams:
    return RoundStreams(
        key=NoiseKey.generate(), run="r", server_round=1, digest=bytes(32), client="a", phase=0
    )


def work_of(build: networks.Build = plain) -> NetworkWork:
    training = LocalTraining(
        optimizer="sgd", lr=0.5, momentum=0.0, weight_decay=0.0, batch_size=8, local_steps=5
    )
    work = NetworkWork(build, TASK, training, device="cpu")
    work.build((4,), 2)
    return work


def received_by(work: NetworkWork) -> State:
    return {name: value.copy() for name, value in work.expected().items()}


def asked(work: NetworkWork, **more: object) -> LocalRound:
    held = {"name": "a", "server_round": 1, "received": received_by(work), "records": blobs()}
    return LocalRound(**held | more)  # type: ignore[arg-type]


def test_a_clients_answer_is_the_change_and_repeats() -> None:
    work = work_of()
    received = received_by(work)
    update, metrics = work.train(asked(work))
    after = {key: received[key] + update[key] for key in received}
    assert work.evaluate(after, blobs())["accuracy"] >= 0.9
    assert metrics["steps"] == 5
    again, _ = work_of().train(asked(work, received=received))
    assert all(np.array_equal(update[key], again[key]) for key in update)


def test_a_loss_on_private_records_is_never_told() -> None:
    work = work_of()
    assert "train_loss" in work.train(asked(work))[1]
    _, metrics = work.train(asked(work, mechanism=mechanism(), streams=streams()))
    assert metrics == {"steps": 2}


def test_a_network_that_remembers_its_batches_is_not_trained_privately() -> None:
    work = work_of(Counting)
    update, _ = work.train(asked(work))
    assert update["seen"].item() > 0, "without privacy a running statistic is averaged"
    with pytest.raises(NetworkKeepsState, match="seen"):
        work.train(asked(work, mechanism=mechanism(), streams=streams()))


def test_what_is_not_trained_with_noise_does_not_leave_the_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work = work_of(Counting)

    def moves_everything(self: NetworkWork, _: LocalRound) -> LocalResult:
        for tensor in self.model.state_dict().values():
            tensor += 1.0
        return LocalResult(steps=1, loss=0.0)

    monkeypatch.setattr(NetworkWork, "_train_privately", moves_everything)
    update, _ = work.train(asked(work, mechanism=mechanism(), streams=streams()))
    moved = {name: bool(value.any()) for name, value in update.items()}
    assert moved == {"linear.weight": True, "linear.bias": True, "frozen": False, "seen": False}


def test_there_is_no_dp_sgd_without_secret_streams() -> None:
    work = work_of()
    with pytest.raises(ValueError, match="secret streams"):
        work.train(asked(work, mechanism=mechanism()))


def test_a_network_is_built_once_for_a_shape() -> None:
    work = work_of()
    first = work.model
    work.build([4], 2)
    assert work.model is first
    work.build((3,), 2)
    assert work.model is not first
    assert work.expected()["weight"].shape == (2, 3)


def test_a_network_that_couples_records_is_refused_by_both_halves() -> None:
    def coupled(shape: Sequence[int], classes: int) -> nn.Module:
        return nn.Sequential(nn.Linear(shape[0], 8), nn.BatchNorm1d(8), nn.Linear(8, classes))

    with pytest.raises(ConfigError):
        NetworkLearner(coupled, TASK, data(), device="cpu").settle("hooks")
    with pytest.raises(ConfigError):
        work_of(coupled).vet(mechanism(), blobs())
    assert NetworkLearner(plain, TASK, data(), device="cpu").settle("hooks") == "hooks"
    work_of().vet(mechanism(), blobs())


def test_the_server_says_which_class_is_taken_for_which(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = NetworkLearner(plain, TASK, data(), device="cpu")
    sure = {"weight": np.zeros((2, 4), np.float32), "bias": np.array([0.0, 1.0], np.float32)}
    assert learner.evaluate(sure, "test")["accuracy"] == 0.5
    found = learner.finish(sure)
    assert found.content is not None
    assert found.content["confusion"] == [[0, 10], [0, 10]]
    assert found.content["class_names"] == ["no", "yes"]
    assert found.pictures is None
    monkeypatch.setattr(networks, "MOST_CLASSES", 1)
    assert learner.finish(sure).content is None


def test_the_first_model_is_the_one_that_was_built() -> None:
    learner = NetworkLearner(plain, TASK, data(), device="cpu")
    assert np.array_equal(learner.initial()["weight"], work_of().expected()["weight"])
    assert learner.order() == {}


def normalised() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def test_floating_tensors_are_read_in_the_models_order_and_counters_are_not() -> None:
    network = normalised()
    state = ModelState(network).read()
    floating = [n for n, t in network.state_dict().items() if t.is_floating_point()]
    assert list(state) == floating
    assert "1.running_mean" in state
    assert "1.num_batches_tracked" not in state
    assert all(state[n].shape == tuple(t.shape) for n, t in network.named_parameters())


def test_what_was_loaded_is_read_and_used() -> None:
    source, target = normalised(), normalised()
    with torch.no_grad():
        for parameter in source.parameters():
            parameter.add_(1.0)
    before = ModelState(target)
    counter = int(target[1].num_batches_tracked)  # type: ignore[index]
    before.load(ModelState(source).read())
    x = torch.randn(5, 3)
    assert torch.equal(source.eval()(x), target.eval()(x))
    assert int(target[1].num_batches_tracked) == counter  # type: ignore[index]


def test_reading_shares_memory_and_loading_copies() -> None:
    network = nn.Linear(2, 2)
    state = ModelState(network)
    seen = state.read()["weight"]
    given = {name: np.full_like(value, 2.0) for name, value in state.read().items()}
    state.load(given)
    assert (seen == 2.0).all(), "no copy was read"
    given["weight"][:] = 9.0
    assert (network.weight == 2.0).all(), "what was given is not held on to"


def test_other_weights_are_not_taken_in_silence() -> None:
    state = ModelState(nn.Linear(2, 2))
    with pytest.raises(KeyError, match="weight"):
        state.load({"bias": np.zeros(2, np.float32)})
    with pytest.raises(ValueError, match="broadcast"):
        state.load({"weight": np.zeros((3, 2), np.float32), "bias": np.zeros(2, np.float32)})
