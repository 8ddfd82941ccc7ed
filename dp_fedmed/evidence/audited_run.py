"""One real run on canaries: the configuration that is audited, run by the product's own code.

Only what the canaries need is replaced: the data, the network, and the optimizers, which make no
difference to a guarantee. Noise, clipping, sampling, rounds, accountant, ledger and report are
those of the configuration, and so is the ε that is claimed: it is read from the run's own report.
"""

from __future__ import annotations

import json
import logging
import math
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from flwr.app import Message
from numpy.typing import NDArray

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
    OptimizerName,
    PartitionConfig,
    PrivacyConfig,
    PrivacyStyle,
    SamplerName,
    TaskConfig,
    TaskKind,
    TrainingConfig,
    Weighting,
)
from dp_fedmed.engines.local_grid import LocalGrid
from dp_fedmed.errors import AuditStopped, ConfigError
from dp_fedmed.evidence import canaries
from dp_fedmed.federation import arrays as model_arrays
from dp_fedmed.federation.plan import ClientPlan, PrivacyPlan
from dp_fedmed.federation.sampling import Sampler
from dp_fedmed.planning.plan import make_plan, make_sampler
from dp_fedmed.privacy import PrivacyEvent
from dp_fedmed.reporting.display import LogDisplay
from dp_fedmed.reporting.plan_words import delta_warnings
from dp_fedmed.run.directory import REPORT_FILE

logger = logging.getLogger(__name__)

Unit = Literal["record", "client"]
State = dict[str, NDArray[Any]]
Floats = NDArray[np.float64]
Coins = NDArray[np.bool_]

OVER = 10.0  # a canary's norm over the clipping norm, so that clipping is exercised
QUIET = 1e-2  # the least σ that a configuration may have


@dataclass(frozen=True, kw_only=True)
class AuditTarget:
    """What is audited: one unit's guarantee, as the configuration's own plan has it.

    Attributes:
        unit: what is protected.
        noise_multiplier: σ of a step.
        sample_rate: q of a step.
        steps: T, over all rounds.
        rounds: in which the steps are taken.
        clip_norm: C.
        delta: δ of the claim.
        adjacency: how neighbouring data sets differ.
        event: what the whole run is charged with.
        other_sigma: σ of the other unit, in style hybrid.
    """

    unit: Unit
    noise_multiplier: float
    sample_rate: float
    steps: int
    rounds: int
    clip_norm: float
    delta: float
    adjacency: str
    event: PrivacyEvent
    other_sigma: float | None = None


def targets(config: Config) -> list[AuditTarget]:
    """The guarantees of a configuration, from the plan that a run of it would make.

    Raises:
        ConfigError: for a configuration that promises nothing, or nothing that canaries can test.
    """
    if config.privacy.style is PrivacyStyle.none:
        raise ConfigError(
            "privacy.style=none claims nothing, so there is nothing to audit: choose "
            "privacy=sample, privacy=user or privacy=hybrid"
        )
    sampler = make_sampler(config)
    private = config.privacy.noise_seed is None
    records = _record_counts(config)
    plan = make_plan(config, records=records, sampler=sampler, is_private=private)
    for said in delta_warnings(config, plan, records):
        logger.warning("%s", said)
    user = plan.user_event
    found = []
    if plan.clients:
        worst, rounds = _worst_client(config, plan)
        found.append(
            AuditTarget(
                unit="record",
                noise_multiplier=worst.noise_multiplier,
                sample_rate=worst.sample_rate,
                steps=worst.steps * rounds,
                rounds=rounds,
                clip_norm=config.privacy.sample.max_grad_norm,
                delta=plan.delta_sample or 0.0,
                adjacency=worst.round_event.adjacency,
                event=worst.round_event.times(rounds),
                other_sigma=None if user is None else user.noise_multiplier,
            )
        )
    if user is not None:
        _refuse_small_cohort(config, user.noise_multiplier, sampler)
        found.append(
            AuditTarget(
                unit="client",
                noise_multiplier=user.noise_multiplier,
                sample_rate=sampler.rate,
                steps=config.federation.num_rounds,
                rounds=config.federation.num_rounds,
                clip_norm=config.privacy.user.max_grad_norm,
                delta=plan.delta_user or 0.0,
                adjacency=user.adjacency,
                event=user.times(config.federation.num_rounds),
                other_sigma=QUIET if plan.clients else None,
            )
        )
    return found


def _record_counts(config: Config) -> dict[str, int]:
    """Each client's training records, where they are protected."""
    if not config.privacy.style.protects_records:
        return {}
    from dp_fedmed.data import load_data
    from dp_fedmed.planning.forecast import simulated_records

    return simulated_records(config, load_data(config.data, seed=config.seed))


def _worst_client(config: Config, plan: PrivacyPlan) -> tuple[ClientPlan, int]:
    """The client whose records spend most, and the rounds in which it may take part."""
    from dp_fedmed.privacy import History

    rounds = config.federation.num_rounds
    limit = config.federation.max_participations or rounds

    def most(own: ClientPlan) -> int:
        return limit if own.participations is None else own.participations

    def spends(own: ClientPlan) -> float:
        events = [own.round_event.times(most(own))] if most(own) else []
        return History(events).epsilon(
            delta=plan.delta_sample or 0.0, method=config.privacy.accountant.value
        )

    worst = max(set(plan.clients.values()), key=spends)
    return worst, min(most(worst), rounds)


def _refuse_small_cohort(config: Config, sigma: float, sampler: Sampler) -> None:
    """What a run of the configuration would refuse, an audit with more clients must refuse too."""
    from dp_fedmed.privacy.mechanisms.adaptive_clipping import split_noise

    if config.privacy.user.clipping is Clipping.adaptive:
        split_noise(sigma, sampler.expected(config.federation.num_clients))


@dataclass(frozen=True, kw_only=True)
class AuditedOutcome:
    """What an audited run gave.

    Attributes:
        epsilon: what the run's own report claims for the unit.
        delta: of that claim.
        released: the final model.
        received: the sum of the answers that the server saw, for unit `record`.
        scores: one per canary; higher speaks for its presence.
    """

    epsilon: float
    delta: float
    released: State
    received: State
    scores: Floats


def run_dirac(
    config: Config, target: AuditTarget, coins: Coins, display: LogDisplay
) -> AuditedOutcome:
    """Run the configuration on Dirac canaries, of which the coins say which are there.

    A canary's score is how far its own weight has moved, in what the unit is protected against:
    for records the answers that the server receives, for clients the released model.
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
    seen = outcome.received if target.unit == "record" else outcome.released
    return replace(outcome, scores=seen[canaries.WEIGHT][:, 0].astype(np.float64))


def batch_for(sample_rate: float, count: int) -> tuple[int, int]:
    """(batch size, records) for at least so many records at this q; the others are blank.

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
        privacy=planned_privacy(config.privacy, target),
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
    from safetensors.numpy import load_file

    from dp_fedmed.launch import run_locally
    from dp_fedmed.run.results import COMPLETED, INTERRUPTED

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
