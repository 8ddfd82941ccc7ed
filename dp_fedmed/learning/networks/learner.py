"""Networks that are trained: plain steps or DP-SGD at the clients, averages at the server."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord

from dp_fedmed.config import Config, GradMode
from dp_fedmed.data import DataSet, Records
from dp_fedmed.errors import ConfigError
from dp_fedmed.federation import arrays as model_arrays
from dp_fedmed.federation.sampling import Sampler
from dp_fedmed.federation.server_optimizer import ServerOptimizer
from dp_fedmed.learning.base import LocalRound, State
from dp_fedmed.learning.networks.local_training import (
    LocalResult,
    make_optimizer,
    pick_device,
    train_locally,
)
from dp_fedmed.learning.networks.task import (
    confusion_matrix,
    make_task,
    predicted_classes,
    to_tensors,
)
from dp_fedmed.models import build_model
from dp_fedmed.planning.plan import PrivacyPlan, round_shape
from dp_fedmed.privacy.mechanisms.client_level import ClientLevelMechanism
from dp_fedmed.privacy.streams.noise import Purpose
from dp_fedmed.privacy.streams.reproducible import stream
from dp_fedmed.reporting.picture_sheet import PICTURES_FILE
from dp_fedmed.run.directory import EVALUATION_FILE, RunDirectory
from dp_fedmed.site.ledger import RecordPlan

if TYPE_CHECKING:
    from dp_fedmed.learning.networks.dp_sgd import DPSGDPlan
    from dp_fedmed.learning.networks.per_sample import PerSampleGradients

MOST_CLASSES = 100  # that a confusion matrix is written for
LEAST_NOISE = 1e-2  # as in the configuration's own range


class GradientLearner:
    """One network, its task, and the server's records to judge it by."""

    def __init__(self, config: Config, data: DataSet) -> None:
        self.config, self.data = config, data
        self.task = make_task(config.task)
        self.device = pick_device(config.training.device)
        self.model = build_model(
            config.model,
            input_shape=data.input_shape,
            num_classes=data.num_classes,
            seed=config.seed,
        ).to(self.device)
        self.state = model_arrays.ModelState(self.model)

    def initial(self) -> State:
        """The weights that the seed gives."""
        return self.state.read()

    def told(self) -> dict[str, Any]:
        """Nothing but the model is needed."""
        return {}

    def settled(self, config: Config) -> Config:
        """Refuse networks and losses that couple records; decide how gradients are computed."""
        mode = self._settle(config.privacy.sample.grad_mode)
        sample = replace(config.privacy.sample, grad_mode=mode)
        return config.replace(privacy=replace(config.privacy, sample=sample))

    def _settle(self, wanted: GradMode) -> GradMode:
        from dp_fedmed.learning.networks.record_check import settle_mode

        x, y = to_tensors(self.data.val, torch.device("cpu"))
        return settle_mode(
            self.model, self.task, x, y, wanted=wanted, classes=self.data.num_classes
        )

    def mechanism(self, plan: PrivacyPlan, sampler: Sampler) -> ClientLevelMechanism | None:
        """Whole updates are clipped and noised where clients are protected."""
        if plan.user_event is None:
            return None
        return ClientLevelMechanism(
            self.config.privacy.user,
            noise_multiplier=plan.user_event.noise_multiplier,
            expected_cohort=sampler.expected(self.config.federation.num_clients),
        )

    def step(self, plan: PrivacyPlan | None, sampler: Sampler) -> ServerOptimizer:
        """The configured optimizer."""
        return ServerOptimizer(self.config.federation)

    def advice(self, plan: PrivacyPlan, sampler: Sampler) -> str | None:
        """None: what noise costs a network is not known before."""
        return None

    def evaluate(self, state: State, split: str) -> dict[str, float]:
        """The task's metrics."""
        self.state.load(state)
        return self.task.evaluate(self.model, self.data.parts()[split], self.device)

    def finish(self, state: State, directory: RunDirectory) -> None:
        """Which test class is taken for which; for segmentation also pictures, worst to best.

        For a regression it is what was predicted against what is true, in the target's unit.
        """
        self.state.load(state)
        if self.data.is_regression:
            from dp_fedmed.learning.networks.regression import evaluation as compared

            found = compared(self.model, self.data, self.device)
            directory.write_json(EVALUATION_FILE, found, durable=False)
            return
        test, classes = self.data.test, self.data.num_classes
        predicted = predicted_classes(self.model, test, self.device)
        if classes <= MOST_CLASSES:
            matrix = confusion_matrix(test.y, predicted, num_classes=classes)
            evaluation = {
                "schema": 1,
                "split": "test",
                "counted": "pixels" if self.data.is_segmentation else "records",
                "class_names": list(self.data.class_names),
                "confusion": matrix.tolist(),
            }
            directory.write_json(EVALUATION_FILE, evaluation, durable=False)
        if self.data.is_segmentation:
            self._draw_pictures(test, predicted, directory.path / PICTURES_FILE)

    def _draw_pictures(self, test: Records, predicted: np.ndarray[Any, Any], path: Path) -> None:
        from dp_fedmed.learning.networks.segmentation import overlap
        from dp_fedmed.reporting.segmentation_sheet import segmentation_sheet, spread

        masks = (torch.from_numpy(np.asarray(each, np.int64)) for each in (predicted, test.y))
        dice = overlap(*masks, num_classes=self.data.num_classes)[0].numpy()
        chosen = spread(dice)
        titles = [f"Dice {value:.2f}" for value in dice[chosen]]
        segmentation_sheet(test.x[chosen], test.y[chosen], predicted[chosen], titles, path)


class GradientWork:
    """One network per process, which every message brings its own weights for."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.task = make_task(config.task)
        self._gradients: PerSampleGradients | None = None
        self._vetted: GradMode | None = None
        self._built: tuple[tuple[int, ...], int] | None = None

    @functools.cached_property
    def device(self) -> torch.device:
        """Where this process computes."""
        return pick_device(self.config.training.device)

    def build(self, input_shape: Sequence[int], num_classes: int) -> None:
        """Make the network.

        The server says for which shape and classes: a site may lack a class that others have.
        """
        if self._built == (tuple(input_shape), num_classes):
            return
        self.model = build_model(
            self.config.model,
            input_shape=input_shape,
            num_classes=num_classes,
            seed=self.config.seed,
        ).to(self.device)
        self.state = model_arrays.ModelState(self.model)
        # A weight that two layers share has two names, and both of them move.
        named = self.model.named_parameters(remove_duplicate=False)
        self.trainable = {name for name, p in named if p.requires_grad}
        make_optimizer(self.model, self.config.training)  # the first one makes torch import more
        self._gradients, self._vetted = None, None
        self._built = (tuple(input_shape), num_classes)

    def accept(self, sent: ArrayRecord) -> State:
        """Weights of this very network."""
        return model_arrays.checked(sent, self.state.read())

    def agree(self, told: ConfigRecord) -> None:
        """The model says it all."""

    def plan(self, told: ConfigRecord, records: int) -> DPSGDPlan:
        """What to do, checked against what this client's own data and settings imply."""
        from dp_fedmed.learning.networks.dp_sgd import DPSGDPlan

        settings = self.config.privacy.sample
        noise, q, steps = asked_shape(self.config, told, records)
        return DPSGDPlan(
            noise_multiplier=noise,
            max_grad_norm=settings.max_grad_norm,
            grad_mode=GradMode(str(told["grad_mode"])),
            physical_batch_size=settings.physical_batch_size,
            sample_rate=q,
            steps=steps,
        )

    def vet(self, plan: RecordPlan, records: Records) -> None:
        """Try the network with random weights and records, once per process.

        Raises:
            ConfigError: if its gradients are not one per record.
        """
        from dp_fedmed.learning.networks.dp_sgd import DPSGDPlan
        from dp_fedmed.learning.networks.record_check import settle_mode

        if not isinstance(plan, DPSGDPlan) or self._vetted is plan.grad_mode:
            return
        x, y = to_tensors(records.subset(np.arange(min(1, len(records)))), self.device)
        classes = self._built[1] if self._built is not None else 1
        settle_mode(self.model, self.task, x, y, wanted=plan.grad_mode, classes=classes)
        self._vetted = plan.grad_mode

    def train(self, work: LocalRound) -> tuple[State, dict[str, float]]:
        """Train on this client's records; the answer is the change of the model."""
        self.state.load(work.received)
        metrics: dict[str, float] = {}
        if work.plan is not None:
            result = self._train_privately(work)
        else:
            result = train_locally(
                self.model,
                work.records,
                task=self.task,
                config=self.config.training,
                rng=stream(self.config.seed, "train", work.name, work.server_round),
                device=self.device,
            )
            metrics["train_loss"] = result.loss  # a loss on private records would be a release
        trained = self.state.read()
        update = {key: np.subtract(trained[key], work.received[key]) for key in work.received}
        if work.plan is not None:
            for key in update.keys() - self.trainable:  # a running statistic would be a release
                update[key] = np.zeros_like(update[key])
        return update, {"steps": result.steps, **metrics}

    def _train_privately(self, work: LocalRound) -> LocalResult:
        from dp_fedmed.learning.networks.dp_sgd import DPSGDPlan, train_privately

        plan, secrets = work.plan, work.secrets
        if not isinstance(plan, DPSGDPlan) or secrets is None:
            raise ValueError("DP-SGD needs a plan and secret streams")
        return train_privately(
            self.gradients(plan),
            work.records,
            config=self.config.training,
            plan=plan,
            batch_stream=lambda step: secrets.sampling(Purpose.BATCH, step),
            noise_for=lambda step, exact: secrets.noise(Purpose.RECORD_NOISE, exact, step),
            device=self.device,
            dropout_seed=int(
                stream(self.config.seed, "dropout", work.name, work.server_round).integers(2**62)
            ),
        )

    def gradients(self, plan: DPSGDPlan) -> PerSampleGradients:
        """The network with Opacus' hooks, attached once per process."""
        from dp_fedmed.learning.networks.per_sample import PerSampleGradients

        if self._gradients is not None and self._gradients.mode is not plan.grad_mode:
            self._gradients.close()
            self._gradients = None
        if self._gradients is None:
            self._gradients = PerSampleGradients(self.model, self.task, plan.grad_mode)
        return self._gradients

    def evaluate(self, received: State, records: Records) -> dict[str, float]:
        """The task's metrics."""
        self.state.load(received)
        return self.task.evaluate(self.model, records, self.device)


def asked_shape(config: Config, told: ConfigRecord, records: int) -> tuple[float, float, int]:
    """(σ, q, steps) that the server asks for, if this client's own settings imply no other.

    Raises:
        ConfigError: naming what differs.
    """
    q, steps = round_shape(config, records)
    for key, value in (("sample_rate", q), ("steps", steps)):
        if told.get(key) != value:
            raise ConfigError(f"the server asks for {key}={told.get(key)!r}, we have {value}")
    noise = float(told["noise_multiplier"])  # type: ignore[arg-type]
    least = config.privacy.sample.noise_multiplier or 0.0
    if not max(least, LEAST_NOISE) <= noise < math.inf:
        raise ConfigError(f"the server asks for noise_multiplier={noise}, too little")
    return noise, q, steps
