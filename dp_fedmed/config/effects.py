"""Refuses settings that have no effect in a run.

Whoever sets ``privacy.sample.target_epsilon`` expects a guarantee: a run that would ignore it must
not begin. Only keys that the user gave are looked at, not those that groups and recipes bring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from dp_fedmed.config.choices import (
    Clipping,
    EngineName,
    OptimizerName,
    PartitionName,
    PrivacyStyle,
    ServerOptimizerName,
    TaskKind,
    Topology,
)
from dp_fedmed.config.schema import Config
from dp_fedmed.config.tree import assignment, get
from dp_fedmed.errors import ConfigError


class Effect(NamedTuple):
    """A condition under which keys have an effect.

    Attributes:
        keys: dotted keys; one that ends in a dot stands for all keys of that section.
        by: the settings that decide it.
        holds: whether they have one in a run.
        needs: what to set for them to have one, in words of the command line.
    """

    keys: tuple[str, ...]
    by: tuple[str, ...]
    holds: Callable[[Config], bool]
    needs: str

    def is_about(self, key: str) -> bool:
        """Whether the condition applies to this key."""
        return key in self.keys or key.startswith(
            tuple(section for section in self.keys if section.endswith("."))
        )


def _trains(config: Config) -> bool:
    return config.task.kind is not TaskKind.anomaly


def _is_private(config: Config) -> bool:
    return config.privacy.style is not PrivacyStyle.none


def _releases_sums(config: Config) -> bool:
    return _is_private(config) and not config.releases_rows


def _with(keys: tuple[str, ...], by: str, *values: Any, needs: str | None = None) -> Effect:
    """Keys that have an effect while one setting has one of these values."""
    said = " or ".join("null" if value is None else str(value) for value in values)
    return Effect(keys, (by,), lambda config: get(config, by) in values, needs or f"{by}={said}")


def _loader(*names: str) -> Callable[[Config], bool]:
    """One of these data sets, or a loader of the user's own, which may read any key."""
    return lambda config: "." in config.data.name or config.data.name in names


def _averages(config: Config) -> bool:
    """Whether answers of several clients are averaged with weights."""
    by_client = _trains(config) or (_releases_sums(config) and not config.record_noise_at_server)
    return config.federation.topology is Topology.federated and by_client


STYLE, KIND, DATA, LOADER = "privacy.style", "task.kind", "data.name", "a loader of your own"
MECHANISM, TOPOLOGY, PARTITION = "anomaly.mechanism", "federation.topology", "data.partition.name"
PRIVATE = "privacy=sample, privacy=user or privacy=hybrid"
#: Every key that a run may ignore. All conditions of a key must hold; other keys always count.
EFFECTS: tuple[Effect, ...] = (
    Effect(
        ("privacy.sample.",),
        (STYLE,),
        lambda config: config.privacy.style.protects_records,
        "privacy=sample or privacy=hybrid",
    ),
    Effect(
        ("privacy.user.",),
        (STYLE,),
        lambda config: config.privacy.style.protects_clients,
        "privacy=user or privacy=hybrid",
    ),
    Effect(("privacy.accountant", "privacy.noise_seed"), (STYLE,), _is_private, PRIVATE),
    _with(
        ("privacy.sample.calibration",),
        "privacy.sample.noise_multiplier",
        None,
        needs="privacy.sample.target_epsilon and no privacy.sample.noise_multiplier",
    ),
    _with(
        ("privacy.user.target_quantile", "privacy.user.clip_lr"),
        "privacy.user.clipping",
        Clipping.adaptive,
    ),
    Effect(
        (
            *("task.loss", "model.", "privacy.sample.grad_mode"),
            *("privacy.sample.physical_batch_size", "training.optimizer", "training.lr"),
            *("training.momentum", "training.weight_decay", "training.batch_size"),
            *("training.local_epochs", "training.local_steps"),
        ),
        (KIND,),
        _trains,
        "a task that trains a network, such as task=digits",
    ),
    _with(("training.momentum",), "training.optimizer", OptimizerName.sgd),
    _with(("training.local_epochs",), "training.local_steps", None),
    _with(("anomaly.",), KIND, TaskKind.anomaly, needs="an anomaly task, such as task=textures"),
    Effect((MECHANISM,), (STYLE,), _is_private, PRIVATE),
    Effect(
        ("anomaly.weights",),
        ("anomaly.backbone",),
        lambda config: config.anomaly.backbone not in ("filters", "tiny"),
        "a backbone that was trained, such as anomaly.backbone=mobilenet_v2",
    ),
    Effect(
        ("anomaly.coreset_size", "anomaly.coreset_ratio"),
        (STYLE, MECHANISM),
        lambda config: not _releases_sums(config),
        "privacy=none or anomaly.mechanism=noisy_rows",
    ),
    Effect(
        ("anomaly.rows_per_image",),
        (STYLE, MECHANISM),
        lambda config: config.releases_rows,
        "privacy=sample and anomaly.mechanism=noisy_rows",
    ),
    _with(("anomaly.neighbours",), STYLE, PrivacyStyle.none, needs="privacy=none"),
    Effect(
        ("anomaly.server_trusted",),
        (STYLE, MECHANISM, TOPOLOGY),
        lambda config: (
            config.privacy.style is PrivacyStyle.sample
            and _releases_sums(config)
            and config.federation.topology is not Topology.local_only
        ),
        "privacy=sample, a mechanism that releases sums, and clients that are not alone",
    ),
    Effect(
        ("data.num_records",),
        (DATA,),
        _loader("cells", "textures"),
        f"generated data, such as task=cells, or {LOADER}",
    ),
    Effect(
        ("data.image_size",),
        (DATA,),
        _loader("cells", "textures", "mvtec_folder", "nnunet_folder"),
        f"images that are made or resized, such as task=cells, or {LOADER}",
    ),
    Effect(
        ("data.val_fraction",),
        (DATA,),
        lambda config: config.data.name != "medmnist",
        f"data without a validation part, such as task=digits, or {LOADER}",
    ),
    Effect(
        ("data.test_fraction",),
        (DATA,),
        _loader("breast_cancer", "digits", "cells", "textures", "nnunet_folder"),
        f"data without a test part, such as task=digits, or {LOADER}",
    ),
    Effect(
        ("data.max_records_per_group",),
        ("data.group_by",),
        lambda config: config.data.group_by is not None,
        "data.group_by",
    ),
    _with(("data.partition.alpha",), PARTITION, PartitionName.dirichlet),
    _with(("data.partition.classes_per_client",), PARTITION, PartitionName.pathological),
    _with(("data.partition.skew",), PARTITION, PartitionName.size_skewed),
    Effect(
        ("federation.weighting",),
        (TOPOLOGY, KIND, STYLE),
        _averages,
        "federation.topology=federated and answers that are averaged",
    ),
    _with(
        ("federation.server_momentum",),
        "federation.server_optimizer",
        ServerOptimizerName.fedavgm,
        ServerOptimizerName.fedadam,
    ),
    _with(
        ("federation.server_beta2", "federation.server_tau"),
        "federation.server_optimizer",
        ServerOptimizerName.fedadam,
    ),
    Effect(
        ("federation.client_evaluate_max",),
        ("federation.client_evaluate_every",),
        lambda config: config.federation.client_evaluate_every > 0,
        "federation.client_evaluate_every=5 or so",
    ),
    _with(
        ("federation.connect_timeout",),
        "engine.name",
        EngineName.ray,
        needs="engine=ray, or flwr run",
    ),
    Effect(("new_phase",), ("resume",), lambda config: config.resume is not None, "resume=last"),
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
    found = {}
    for key in given:
        missing = unmet(config, key)
        if missing is not None and get(config, key) is not None:
            found[key] = missing
    return found


def refuse_without_effect(runs: Iterable[Config], given: Sequence[str]) -> None:
    """Refuses settings that have no effect in any of the runs that they were given for.

    Args:
        runs: one, or the jobs of a sweep; no more of them are made than it takes.
        given: the keys that the user gave.

    Raises:
        ConfigError: naming the key, its value, and what would give it an effect.
    """
    idle: dict[str, Effect] = {}
    for config in runs:
        idle = without_effect(config, idle or given)
        if not idle:
            return
    for key, missing in idle.items():
        standing = " ".join(assignment(config, by) for by in missing.by)
        raise ConfigError(
            f"{assignment(config, key)} has no effect with {standing}: it needs {missing.needs}; "
            f"add that, or leave {key} out"
        )
