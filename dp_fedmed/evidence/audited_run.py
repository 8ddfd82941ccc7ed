"""One real run on canaries: the configuration that is audited, run by the product's own code.

Only what the canaries need is replaced: the data, and for Dirac canaries the network and the
optimizers, which make no difference to a guarantee. Noise, clipping, sampling, rounds, accountant,
ledger and report are those of the configuration, and so is the ε that is claimed: it is read from
the run's own report.
"""

from __future__ import annotations

import json
import math
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Message
from numpy.typing import NDArray
from safetensors.numpy import load_file

from dp_fedmed.assemble import make_learner
from dp_fedmed.config import (
    CheckpointConfig,
    Clipping,
    Config,
    DataConfig,
    EngineConfig,
    EngineName,
    FederationConfig,
    GradMode,
    ModelConfig,
    NoisePlace,
    OptimizerName,
    PartitionConfig,
    PartitionName,
    PrivacyConfig,
    SamplerName,
    TaskConfig,
    TaskKind,
    TrainingConfig,
    Weighting,
)
from dp_fedmed.data import DataSet, Records, load_data, partition
from dp_fedmed.engines.local_grid import LocalGrid
from dp_fedmed.errors import AuditStopped, ConfigError
from dp_fedmed.evidence import canaries
from dp_fedmed.evidence.findings import AuditTarget, Coins, Floats, Unit
from dp_fedmed.federation import arrays as model_arrays
from dp_fedmed.launch import run_locally
from dp_fedmed.learning.networks.learner import NetworkLearner
from dp_fedmed.learning.networks.task import predictions
from dp_fedmed.reporting.display import LogDisplay
from dp_fedmed.run.directory import REPORT_FILE
from dp_fedmed.run.results import COMPLETED, INTERRUPTED

State = dict[str, NDArray[Any]]

OVER = 10.0  # a canary's norm over the clipping norm, so that clipping is exercised
MOST_BLACK_BOX = 1000  # canary records


@dataclass(frozen=True, kw_only=True)
class AuditedOutcome:
    """What an audited run gave, and what its own report claims for the unit."""

    epsilon: float
    delta: float
    released: State  # the final model
    received: State  # the sum of the answers that the server saw, for unit `record`
    scores: Floats  # one per canary; higher speaks for its presence


def run_dirac(
    config: Config, target: AuditTarget, coins: Coins, display: LogDisplay
) -> AuditedOutcome:
    """Run the configuration on Dirac canaries, of which the coins say which are there.

    A canary's score is how far its own weight has moved, in what the unit is protected against:
    the answers that the server receives where each client noises its own records, else the
    released model.
    """
    numbers = np.arange(len(coins), dtype=np.float32)
    if target.unit == "record":
        batch, total = batch_for(target.sample_rate, len(coins))
        present = np.full(total, canaries.BLANK, np.float32)
        present[: len(coins)] = np.where(coins, numbers, canaries.BLANK)
    elif target.adjacency == "zero_out":
        batch, present = 1, np.where(coins, numbers, np.float32(canaries.BLANK))
    else:
        batch, present = 1, numbers[coins]
    with canaries.prepared(canaries.dirac_data(present)) as data:
        changed = _dirac_config(config, target, data, batch, len(present), len(coins))
        outcome = run_audited(changed, display, target.unit)
    is_noised = target.unit == "record" and not config.sums_records
    seen = outcome.received if is_noised else outcome.released
    return replace(outcome, scores=seen[canaries.WEIGHT][:, 0].astype(np.float64))


def batch_for(sample_rate: float, count: int) -> tuple[int, int]:
    """(batch size, records) for at least this many records at this q; the others are blank.

    >>> batch_for(0.3, 1000), batch_for(1.0, 1000), batch_for(1e-4, 1000)
    ((300, 1000), (1000, 1000), (1, 10000))
    """
    batch = max(1, math.ceil(sample_rate * count - 1e-9))
    return batch, max(count, round(batch / sample_rate))


def _dirac_config(
    config: Config, target: AuditTarget, data: DataConfig, batch: int, records: int, count: int
) -> Config:
    norm = _canary_norm(config.privacy, target)
    model = ModelConfig(_target_=canaries.MODEL, args={"count": count, "gradient": norm}, fix=False)
    plain = TrainingConfig(
        optimizer=OptimizerName.sgd,
        lr=1.0,
        batch_size=batch,
        local_steps=target.steps // target.rounds,
        threads=config.training.threads,
        device="cpu",
    )
    task = TaskConfig(name="canaries", kind=TaskKind.classification, metric="loss")
    clients = 1 if target.unit == "record" else records
    changed = audited(config, target, data, clients)
    sample = replace(changed.privacy.sample, grad_mode=GradMode.auto)  # what suits the stand-in
    privacy = replace(changed.privacy, sample=sample)
    return replace(changed, task=task, model=model, training=plain, privacy=privacy)


def _canary_norm(privacy: PrivacyConfig, target: AuditTarget) -> float:
    """Ten times C; where C adapts, of the C that it could grow to."""
    adapts = target.unit == "client" and privacy.user.clipping is Clipping.adaptive
    growth = math.exp(min(12.0, privacy.user.clip_lr * target.rounds)) if adapts else 1.0
    return OVER * growth * target.clip_norm


def audited(config: Config, target: AuditTarget, data: DataConfig, clients: int) -> Config:
    """The configuration with canaries in place of its data, and its plan's σ in place of targets.

    Optimizers and learning rates work on what was released: here they leave it as it is.
    """
    old = config.federation
    by_record = target.unit == "record"
    federation = FederationConfig(
        num_clients=clients,
        num_rounds=target.rounds,
        sampler=SamplerName.all if by_record else old.sampler,
        sample_rate=1.0 if by_record else old.sample_rate,
        weighting=old.weighting if by_record else Weighting.uniform,
        evaluate_every=0,
        client_evaluate_every=0,
    )
    return replace(
        config,
        data=replace(data, partition=PartitionConfig(min_records=1)),
        federation=federation,
        engine=EngineConfig(
            name=EngineName.local, workers=1 if by_record else config.engine.workers
        ),
        privacy=without_masks(planned_privacy(config.privacy, target)),
        checkpoint=CheckpointConfig(every=target.rounds, keep=1),
        data_ledger=None,
        allow_code=[*config.allow_code, canaries.__name__],
    )


def planned_privacy(privacy: PrivacyConfig, target: AuditTarget) -> PrivacyConfig:
    """σ and δ as planned. In style hybrid, a canary client adds next to no noise of its own.

    It may: what a client sends is not trusted by the client-level guarantee.
    """
    sample = replace(privacy.sample, target_epsilon=None)
    user = replace(privacy.user, target_epsilon=None)
    if target.unit == "record":
        sample = replace(
            sample, noise_multiplier=target.noise_multiplier, target_delta=target.delta
        )
        user = replace(user, noise_multiplier=target.other_sigma, clipping=Clipping.fixed)
    else:
        user = replace(user, noise_multiplier=target.noise_multiplier, target_delta=target.delta)
        if target.other_sigma is not None:
            norm = min(1e6, _canary_norm(privacy, target))
            sample = replace(sample, noise_multiplier=target.other_sigma, max_grad_norm=norm)
    return replace(privacy, sample=sample, user=user)


def without_masks(privacy: PrivacyConfig) -> PrivacyConfig:
    """The same noise in the sum, drawn at the server: masks cancel, and cost thousands of clients.

    The shares themselves are attacked one release at a time.
    """
    is_shared = privacy.noise is NoisePlace.shares
    return replace(privacy, noise=NoisePlace.server) if is_shared else privacy


class WatchedGrid(LocalGrid):
    """Adds up the answers that the server receives: what it could look at, if it were curious."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.received: dict[str, Floats] = {}

    def _replies_to(self, *arguments: Any) -> Iterator[Message]:
        for reply in super()._replies_to(*arguments):
            if not reply.has_error() and "arrays" in reply.content.array_records:
                answer = model_arrays.from_record(reply.content.array_records["arrays"])
                for name, value in answer.items():
                    self.received[name] = self.received.get(name, 0.0) + value.astype(np.float64)
            yield reply


def run_audited(config: Config, display: LogDisplay, unit: Unit) -> AuditedOutcome:
    """Run a configuration, ledger and report included, in a temporary directory."""
    grids: list[WatchedGrid] = []

    def make_grid(*arguments: Any, **settings: Any) -> WatchedGrid:
        grids.append(WatchedGrid(*arguments, **settings))
        return grids[-1]

    with warnings.catch_warnings(), tempfile.TemporaryDirectory(prefix="dp_fedmed_") as folder:
        warnings.filterwarnings("ignore", message="In CPU autocast")  # Opacus' on an embedding
        config = config.replace(run_dir=str(Path(folder) / "run"))
        result = run_locally(config, display, make_grid if unit == "record" else None)
        if result.stopped.startswith(INTERRUPTED):
            raise KeyboardInterrupt
        if result.stopped != COMPLETED:
            raise AuditStopped(f"the audited run stopped: {result.stopped}")
        report = json.loads((result.run_dir / REPORT_FILE).read_text())
        released = load_file(result.run_dir / "model.safetensors")
    held = next(g for g in report["guarantees"] if g["unit"] == unit)
    return AuditedOutcome(
        epsilon=float(held["epsilon"]),
        delta=float(held["delta"]),
        released=released,
        received=dict(grids[0].received) if grids else {},
        scores=np.zeros(0),
    )


def most_canaries(config: Config, target: AuditTarget) -> int:
    """How many canaries the data can give: half of the training records, or all clients.

    Raises:
        ConfigError: for a task without labels to randomise, or a sampler that canaries do not fit.
    """
    if config.task.kind is not TaskKind.classification:
        raise ConfigError(
            f"--canaries black-box needs class labels to randomise, but task.kind="
            f"{config.task.kind}: use --canaries white-box"
        )
    if target.unit == "client":
        if config.federation.sampler is SamplerName.fixed and config.federation.sample_rate < 1.0:
            raise ConfigError(
                "--canaries black-box leaves clients out, against which federation.sampler=fixed "
                "makes no promise: use federation.sampler=poisson or --canaries white-box"
            )
        return config.federation.num_clients
    train = load_data(config.data, seed=config.seed).train
    return min(MOST_BLACK_BOX, len(train) // 2)


def run_black_box(
    config: Config, target: AuditTarget, coins: Coins, display: LogDisplay, rng: np.random.Generator
) -> AuditedOutcome:
    """Run the configuration on records with random labels; a score is how much a loss fell.

    They go through the task's own network, optimizer and data, and are seen as a stranger with the
    model sees them. That makes the weaker audit: a bound near 0 says little.
    """
    data = load_data(config.data, seed=config.seed)
    if target.unit == "record":
        parts, training = _canary_records(data, coins, rng)
        batch, _ = batch_for(target.sample_rate, len(training))
        clients = 1
    else:
        parts, training = _canary_clients(config, data, coins, rng)
        batch, clients = config.training.batch_size, int(coins.sum())
    with canaries.prepared(replace(data, train=training, site_names=())) as section:
        changed = _black_box_config(config, target, section, clients, batch)
        outcome = run_audited(changed, display, target.unit)
        scores = _fall_in_loss(changed, data, parts, outcome.released)
    return replace(outcome, scores=scores)


def _black_box_config(
    config: Config, target: AuditTarget, section: DataConfig, clients: int, batch: int
) -> Config:
    """The configuration on the canaries' data, with its own network and optimizers."""
    base = audited(config, target, section, clients)
    federation = replace(
        config.federation,
        num_clients=clients,
        num_rounds=target.rounds,
        sampler=base.federation.sampler,
        sample_rate=base.federation.sample_rate,
        max_participations=None,
        evaluate_every=0,
        client_evaluate_every=0,
    )
    if target.unit == "record":
        training = replace(
            config.training, batch_size=batch, local_steps=target.steps // target.rounds
        )
        return replace(base, federation=federation, training=training)
    own = PartitionConfig(name=PartitionName.natural, min_records=1)
    return replace(base, federation=federation, data=replace(section, partition=own))


def _canary_records(
    data: DataSet, coins: Coins, rng: np.random.Generator
) -> tuple[list[Records], Records]:
    """(the canaries one by one, the training records with those that are in)."""
    chosen = rng.choice(len(data.train), len(coins), replace=False)
    labels = data.train.y.copy()
    labels[chosen] = rng.integers(data.num_classes, size=len(chosen))
    changed = Records(data.train.x, labels)
    out = np.zeros(len(labels), dtype=np.bool_)
    out[chosen[~coins]] = True
    return [changed.subset(np.array([i])) for i in chosen], changed.subset(np.flatnonzero(~out))


def _canary_clients(
    config: Config, data: DataSet, coins: Coins, rng: np.random.Generator
) -> tuple[list[Records], Records]:
    """(each client's records with random labels, those of the clients that are in)."""
    shares = partition(data, config.data.partition, num_clients=len(coins), seed=config.seed)
    labels = rng.integers(data.num_classes, size=len(data.train)).astype(np.int64)
    site = np.full(len(labels), -1, np.int64)
    for number, client in enumerate(np.flatnonzero(coins)):
        site[shares[client]] = number
    changed = Records(data.train.x, labels, site)
    return [changed.subset(share) for share in shares], changed.subset(np.flatnonzero(site >= 0))


def _fall_in_loss(config: Config, data: DataSet, parts: list[Records], released: State) -> Floats:
    """By how much the mean loss of each canary's records fell in training."""
    learner = make_learner(config, data)
    if not isinstance(learner, NetworkLearner):
        raise TypeError(f"{type(learner).__name__} trains no network")
    everything = Records(
        np.concatenate([part.x for part in parts]), np.concatenate([part.y for part in parts])
    )
    ends = np.cumsum([len(part) for part in parts])

    def losses() -> Floats:
        pairs = list(predictions(learner.model, everything, learner.device))
        each = [learner.task.record_losses(logits, targets) for logits, targets in pairs]
        values = torch.cat(each).double().numpy()
        return np.array([part.mean() for part in np.split(values, ends[:-1])])

    before = losses()
    learner.state.load(released)
    fall: Floats = before - losses()
    return np.nan_to_num(fall, nan=0.0, posinf=0.0, neginf=0.0)
