"""Black-box canaries: records of the data set with random labels, which their loss gives away.

They go through the task's own network, optimizer and data, and are seen as a stranger with the
model sees them. That makes the weaker audit: a bound near 0 says little.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dp_fedmed.config import (
    Config,
    DataConfig,
    PartitionConfig,
    PartitionName,
    SamplerName,
    TaskKind,
)
from dp_fedmed.data import DataSet, Records, load_data, partition
from dp_fedmed.errors import ConfigError
from dp_fedmed.evidence import canaries
from dp_fedmed.evidence.audited_run import (
    AuditedOutcome,
    AuditTarget,
    Coins,
    Floats,
    audited,
    batch_for,
    run_audited,
)
from dp_fedmed.reporting.display import LogDisplay

MOST_RECORDS = 1000


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
    return min(MOST_RECORDS, len(train) // 2)


def run_black_box(
    config: Config, target: AuditTarget, coins: Coins, display: LogDisplay, rng: np.random.Generator
) -> AuditedOutcome:
    """Run the configuration with these canaries; a score is how much the canary's loss fell."""
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


def _fall_in_loss(
    config: Config, data: DataSet, parts: list[Records], released: dict[str, NDArray[Any]]
) -> Floats:
    """By how much the mean loss of each canary's records fell in training."""
    import torch

    from dp_fedmed.assemble import make_learner
    from dp_fedmed.learning.networks.learner import NetworkLearner
    from dp_fedmed.learning.networks.task import predictions

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
