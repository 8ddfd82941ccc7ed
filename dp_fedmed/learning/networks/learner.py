"""Networks that are trained: plain steps or DP-SGD at the clients, averages at the server."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from dp_fedmed.data import DataSet, Records
from dp_fedmed.learning.base import Evaluation, LocalRound, Pictures, State
from dp_fedmed.learning.networks.local_training import (
    LocalResult,
    LocalTraining,
    make_optimizer,
    pick_device,
    train_locally,
)
from dp_fedmed.learning.networks.task import Task, confusion_matrix, predictions, to_tensors
from dp_fedmed.privacy.mechanisms.base import RecordMechanism
from dp_fedmed.privacy.mechanisms.dp_sgd import DPSGD
from dp_fedmed.privacy.streams import Purpose, stream

if TYPE_CHECKING:
    from dp_fedmed.learning.networks.per_sample import PerSampleGradients

MOST_CLASSES = 100  # that a confusion matrix is written for
#: Makes a network for records of a shape and a number of classes.
Build = Callable[[Sequence[int], int], nn.Module]


class ModelState:
    """The floating-point tensors of a model as named arrays; integer buffers are never sent.

    >>> state = ModelState(nn.Linear(2, 1))
    >>> sorted(state.read())
    ['bias', 'weight']
    """

    def __init__(self, model: nn.Module) -> None:
        self._tensors = {
            name: tensor.detach()
            for name, tensor in model.state_dict().items()
            if tensor.is_floating_point()
        }

    def read(self) -> State:
        """The tensors as numpy arrays, in the model's order; on the CPU they share its memory."""
        return {name: tensor.numpy(force=True) for name, tensor in self._tensors.items()}

    def load(self, state: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Copy arrays into the model."""
        for name, tensor in self._tensors.items():
            if tensor.device.type == "cpu":
                np.copyto(tensor.numpy(), state[name])
            else:
                tensor.copy_(torch.from_numpy(state[name].copy()))


class NetworkLearner:
    """The server's half: one network, its task, and the server's own records to judge it by."""

    def __init__(self, build: Build, task: Task, data: DataSet, *, device: str = "auto") -> None:
        self.task, self.data, self.device = task, data, pick_device(device)
        self.model = build(data.input_shape, data.num_classes).to(self.device)
        self.state = ModelState(self.model)

    def initial(self) -> State:
        """The weights that the seed gives."""
        return self.state.read()

    @property
    def trained(self) -> dict[str, str]:
        """Trained weights by name, each with the name that its gradient has: two may share one."""
        first = {id(p): name for name, p in self.model.named_parameters()}
        named = self.model.named_parameters(remove_duplicate=False)
        return {name: first[id(p)] for name, p in named if p.requires_grad}

    def order(self) -> dict[str, Any]:
        """Nothing: the weights tell a client all that it must know."""
        return {}

    def settle(self, grad_mode: str) -> str:
        """Refuse networks and losses that couple records; decide how gradients are computed."""
        from dp_fedmed.learning.networks.record_check import settle_mode

        x, y = to_tensors(self.data.val, torch.device("cpu"))
        return settle_mode(
            self.model, self.task, x, y, wanted=grad_mode, classes=self.data.num_classes
        )

    def evaluate(self, state: State, split: str) -> dict[str, float]:
        """The task's metrics."""
        self.state.load(state)
        return self.task.evaluate(self.model, self.data.parts()[split], self.device)

    def finish(self, state: State) -> Evaluation:
        """Which test class is taken for which; for segmentation also pictures, worst to best.

        For a regression it is what was predicted against what is true, in the target's unit.
        """
        self.state.load(state)
        if self.data.is_regression:
            from dp_fedmed.learning.networks.regression import evaluation as compared

            return Evaluation(content=compared(self.model, self.data, self.device))
        test, classes = self.data.test, self.data.num_classes
        found = [logits.argmax(dim=1) for logits, _ in predictions(self.model, test, self.device)]
        predicted = torch.cat(found).numpy()
        content = None
        if classes <= MOST_CLASSES:
            matrix = confusion_matrix(test.y, predicted, num_classes=classes)
            content = {
                "schema": 1,
                "split": "test",
                "counted": "pixels" if self.data.is_segmentation else "records",
                "class_names": list(self.data.class_names),
                "confusion": matrix.tolist(),
            }
        pictures = self._pictures(test, predicted) if self.data.is_segmentation else None
        return Evaluation(content=content, pictures=pictures)

    def _pictures(self, test: Records, predicted: np.ndarray[Any, Any]) -> Pictures:
        from dp_fedmed.learning.networks.segmentation import overlap, spread

        masks = (torch.from_numpy(np.asarray(each, np.int64)) for each in (predicted, test.y))
        dice = overlap(*masks, num_classes=self.data.num_classes)[0].numpy()
        chosen = spread(dice)
        return Pictures(
            kind="segmentation",
            images=test.x[chosen],
            truth=test.y[chosen],
            found=predicted[chosen],
            titles=[f"Dice {value:.2f}" for value in dice[chosen]],
        )


class NetworkWork:
    """A client's half: one network per process; every message brings its weights.

    `seed` is that of batches and dropout, which are public.
    """

    def __init__(
        self,
        build: Build,
        task: Task,
        training: LocalTraining,
        *,
        seed: int = 0,
        device: str = "auto",
    ) -> None:
        self._build, self.task, self.training, self.seed = build, task, training, seed
        self._device = device
        self._gradients: PerSampleGradients | None = None
        self._vetted: str | None = None
        self._built: tuple[tuple[int, ...], int] | None = None

    @functools.cached_property
    def device(self) -> torch.device:
        """Where this process computes."""
        return pick_device(self._device)

    def build(self, input_shape: Sequence[int], num_classes: int) -> None:
        """Make the network.

        The server says for which shape and classes: a site may lack a class that others have.
        """
        if self._built == (tuple(input_shape), num_classes):
            return
        self.model = self._build(input_shape, num_classes).to(self.device)
        self.state = ModelState(self.model)
        # A weight that two layers share has two names, and both of them move.
        named = self.model.named_parameters(remove_duplicate=False)
        self.trainable = {name for name, p in named if p.requires_grad}
        make_optimizer(self.model, self.training)  # the first one makes torch import more
        self._gradients, self._vetted = None, None
        self._built = (tuple(input_shape), num_classes)

    def expected(self) -> State:
        """Weights of this very network."""
        return self.state.read()

    def agree(self, order: Mapping[str, Any]) -> None:
        """Nothing to compare: a network's weights would not fit another's."""

    def vet(self, mechanism: RecordMechanism, records: Records) -> None:
        """Tries the network with random weights and records, once per process."""
        from dp_fedmed.learning.networks.record_check import settle_mode

        if not isinstance(mechanism, DPSGD) or self._vetted == mechanism.grad_mode:
            return
        x, y = to_tensors(records.subset(np.arange(min(1, len(records)))), self.device)
        classes = self._built[1] if self._built is not None else 1
        settle_mode(self.model, self.task, x, y, wanted=mechanism.grad_mode, classes=classes)
        self._vetted = mechanism.grad_mode

    def train(self, work: LocalRound) -> tuple[State, dict[str, float]]:
        """Train on this client's records; the answer is the change of the model."""
        self.state.load(work.received)
        metrics: dict[str, float] = {}
        if isinstance(work.mechanism, DPSGD) and work.mechanism.noised_by != "client":
            return self._sum(work, work.mechanism), {"steps": 1}
        if work.mechanism is not None:
            result = self._train_privately(work)
        else:
            result = train_locally(
                self.model,
                work.records,
                task=self.task,
                config=self.training,
                rng=stream(self.seed, "train", work.name, work.server_round),
                device=self.device,
            )
            metrics["train_loss"] = result.loss  # a loss on private records would be a release
        trained = self.state.read()
        update = {key: np.subtract(trained[key], work.received[key]) for key in work.received}
        if work.mechanism is not None:
            for key in update.keys() - self.trainable:  # a running statistic would be a release
                update[key] = np.zeros_like(update[key])
        return update, {"steps": result.steps, **metrics}

    def _train_privately(self, work: LocalRound) -> LocalResult:
        from dp_fedmed.learning.networks.dp_sgd import train_privately

        plan, streams = work.mechanism, work.streams
        if not isinstance(plan, DPSGD) or streams is None:
            raise ValueError("DP-SGD needs a mechanism and secret streams")
        return train_privately(
            self.gradients(plan.grad_mode),
            work.records,
            config=self.training,
            plan=plan,
            batch_stream=lambda step: streams.sampling(Purpose.BATCH, step),
            noise_for=lambda step, exact: streams.noise(Purpose.RECORD_NOISE, exact, step),
            device=self.device,
            dropout_seed=self._dropout_seed(work),
        )

    def _sum(self, work: LocalRound, plan: DPSGD) -> State:
        """The sum of a batch's gradients, where one noise is for all; zero where none is."""
        from dp_fedmed.learning.networks.dp_sgd import summed_gradients

        streams = work.streams
        if streams is None:
            raise ValueError("DP-SGD needs secret streams")
        found = summed_gradients(
            self.gradients(plan.grad_mode),
            work.records,
            config=self.training,
            plan=plan,
            batch_stream=lambda step: streams.sampling(Purpose.BATCH, step),
            device=self.device,
            dropout_seed=self._dropout_seed(work),
        )
        nothing = {name: np.zeros(value.shape, np.int64) for name, value in work.received.items()}
        return nothing | found

    def _dropout_seed(self, work: LocalRound) -> int:
        own = stream(self.seed, "dropout", work.name, work.server_round)
        return int(own.integers(2**62))

    def gradients(self, grad_mode: str) -> PerSampleGradients:
        """The network with its per-record gradients, attached once per process."""
        from dp_fedmed.learning.networks.per_sample import PerSampleGradients

        if self._gradients is not None and self._gradients.mode != grad_mode:
            self._gradients.close()
            self._gradients = None
        if self._gradients is None:
            self._gradients = PerSampleGradients(self.model, self.task, grad_mode)
        return self._gradients

    def evaluate(self, received: State, records: Records) -> dict[str, float]:
        """The task's metrics."""
        self.state.load(received)
        return self.task.evaluate(self.model, records, self.device)
