"""Refuses settings that have no effect in a run.

Whoever sets ``privacy.sample.target_epsilon`` expects a guarantee: a run that would ignore it must
not begin. Only keys that the user gave are looked at, not those that groups and recipes bring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from dp_fedmed.config.choices import PrivacyStyle, TaskKind, Topology
from dp_fedmed.config.schema import Config
from dp_fedmed.config.tree import assignment, get
from dp_fedmed.errors import ConfigError


class Effect(NamedTuple):
    """A condition under which keys have an effect.

    Attributes:
        keys: dotted keys, separated by spaces; one that ends in a dot means its whole section.
        by: the settings that decide it, separated by spaces.
        holds: whether the keys have an effect in a run.
        needs: what to set for them to have one, in words of the command line.
    """

    keys: str
    by: str
    holds: Callable[[Config], bool]
    needs: str

    def is_about(self, key: str) -> bool:
        """Whether the condition applies to this key."""
        return any(
            key == own or (own.endswith(".") and key.startswith(own)) for own in self.keys.split()
        )


def _trains(config: Config) -> bool:
    return config.task.kind is not TaskKind.anomaly


def _is_private(config: Config) -> bool:
    return config.privacy.style is not PrivacyStyle.none


def _releases_sums(config: Config) -> bool:
    return _is_private(config) and not config.releases_rows


def _averages(config: Config) -> bool:
    """Whether answers of several clients are averaged with weights."""
    by_client = _trains(config) or _releases_sums(config)
    one_sum = config.sums_records
    return config.federation.topology is Topology.federated and by_client and not one_sum


def _with(keys: str, by: str, *values: str | None, needs: str | None = None) -> Effect:
    """Keys that have an effect while one setting has one of these values."""
    said = " or ".join(value or "null" for value in values)
    return Effect(keys, by, lambda config: get(config, by) in values, needs or f"{by}={said}")


def _data(key: str, *names: str, needs: str) -> Effect:
    """A key that these data sets read, and perhaps a loader of the user's own."""

    def holds(config: Config) -> bool:
        return "." in config.data.name or config.data.name in names

    return Effect(key, "data.name", holds, f"{needs}, or a loader of your own")


STYLE, KIND, MECHANISM = "privacy.style", "task.kind", "anomaly.mechanism"
TOPOLOGY, PARTITION = "federation.topology", "data.partition.name"
OPTIMIZER, CLIPPING = "federation.server_optimizer", "privacy.user.clipping"
PRIVATE = "privacy=sample, privacy=user or privacy=hybrid"
#: Every key that a run may ignore. All conditions of a key must hold; other keys always count.
EFFECTS: tuple[Effect, ...] = (
    _with("privacy.sample.", STYLE, "sample", "hybrid", needs="privacy=sample or privacy=hybrid"),
    _with("privacy.user.", STYLE, "user", "hybrid", needs="privacy=user or privacy=hybrid"),
    Effect("privacy.accountant privacy.noise_seed", STYLE, _is_private, PRIVATE),
    _with(
        "privacy.sample.calibration",
        "privacy.sample.noise_multiplier",
        None,
        needs="privacy.sample.target_epsilon and no privacy.sample.noise_multiplier",
    ),
    Effect(
        "privacy.sample.calibration training.momentum",
        "privacy.noise",
        lambda config: not config.sums_records,
        "privacy.noise=client: one noise has one σ for all, and the server takes each step",
    ),
    _with("privacy.user.target_quantile privacy.user.clip_lr", CLIPPING, "adaptive"),
    Effect(
        "task.loss model. privacy.sample.grad_mode privacy.sample.physical_batch_size "
        "training.optimizer training.lr training.momentum training.weight_decay "
        "training.batch_size training.local_epochs training.local_steps",
        KIND,
        _trains,
        "a task that trains a network, such as task=digits",
    ),
    _with("training.momentum", "training.optimizer", "sgd"),
    _with("training.local_epochs", "training.local_steps", None),
    _with("anomaly.", KIND, "anomaly", needs="an anomaly task, such as task=textures"),
    Effect(MECHANISM, STYLE, _is_private, PRIVATE),
    Effect(
        "anomaly.weights",
        "anomaly.backbone",
        lambda config: config.anomaly.backbone not in ("filters", "tiny"),
        "a backbone that was trained, such as anomaly.backbone=mobilenet_v2",
    ),
    Effect(
        "anomaly.coreset_size anomaly.coreset_ratio",
        f"{STYLE} {MECHANISM}",
        lambda config: not _releases_sums(config),
        "privacy=none or anomaly.mechanism=noisy_rows",
    ),
    Effect(
        "anomaly.rows_per_image",
        f"{STYLE} {MECHANISM}",
        lambda config: config.releases_rows,
        "privacy=sample and anomaly.mechanism=noisy_rows",
    ),
    _with("anomaly.neighbours", STYLE, "none", needs="privacy=none"),
    Effect("privacy.noise", STYLE, _is_private, "privacy=sample, user or hybrid"),
    Effect(
        "federation.max_dropouts federation.max_colluding",
        f"{STYLE} privacy.noise federation.secure_aggregation",
        lambda config: config.masks,
        "privacy.noise=shares, or privacy=none federation.secure_aggregation=true",
    ),
    _data("data.num_records", "cells", "textures", needs="generated data, such as task=cells"),
    _data(
        "data.image_size",
        *("cells", "textures", "mvtec_folder", "nnunet_folder"),
        needs="images that are made or resized, such as task=cells",
    ),
    Effect(
        "data.val_fraction",
        "data.name",
        lambda config: config.data.name != "medmnist",
        "data without a validation part, such as task=digits, or a loader of your own",
    ),
    _data(
        "data.test_fraction",
        *("breast_cancer", "diabetes", "digits", "cells", "textures", "nnunet_folder"),
        needs="data without a test part, such as task=digits",
    ),
    _with("data.max_records_per_group", "data.group_by", "patient", needs="data.group_by"),
    _with("data.partition.alpha", PARTITION, "dirichlet"),
    _with("data.partition.classes_per_client", PARTITION, "pathological"),
    _with("data.partition.skew", PARTITION, "size_skewed"),
    Effect(
        "federation.weighting",
        f"{TOPOLOGY} {KIND} {STYLE}",
        _averages,
        "federation.topology=federated and answers that are averaged",
    ),
    _with("federation.server_momentum", OPTIMIZER, "fedavgm", "fedadam"),
    _with("federation.server_beta2 federation.server_tau", OPTIMIZER, "fedadam"),
    Effect(
        "federation.client_evaluate_max",
        "federation.client_evaluate_every",
        lambda config: config.federation.client_evaluate_every > 0,
        "federation.client_evaluate_every=5 or so",
    ),
    _with("federation.connect_timeout", "engine.name", "ray", needs="engine=ray, or flwr run"),
    Effect("new_phase", "resume", lambda config: config.resume is not None, "resume=last"),
)


def unmet(config: Config, key: str) -> Effect | None:
    """The first condition of a key that does not hold; None if the key has an effect.

    >>> unmet(Config(), "privacy.sample.target_epsilon").needs
    'privacy=sample or privacy=hybrid'
    >>> unmet(Config(), "training.lr")
    """
    return next((e for e in EFFECTS if e.is_about(key) and not e.holds(config)), None)


def without_effect(config: Config, given: Iterable[str]) -> dict[str, Effect]:
    """The given keys that this run ignores, except those that are set to null."""
    found = {key: unmet(config, key) for key in given if get(config, key) is not None}
    return {key: missing for key, missing in found.items() if missing is not None}


def refuse_without_effect(runs: Iterable[Config], given: Sequence[str]) -> None:
    """Refuses settings that have no effect in any of the runs that they were given for.

    Args:
        runs: one, or the jobs of a sweep; no more of them are made than it takes.
        given: the keys that the user gave.
    """
    idle: dict[str, Effect] = {}
    for config in runs:
        idle = without_effect(config, idle or given)
        if not idle:
            return
    for key, missing in idle.items():
        standing = " ".join(assignment(config, by) for by in missing.by.split())
        raise ConfigError(
            f"{assignment(config, key)} has no effect with {standing}: it needs {missing.needs}; "
            f"add that, or leave {key} out"
        )
