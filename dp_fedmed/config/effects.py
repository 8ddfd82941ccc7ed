"""Which settings have an effect in which runs; what a user gave in vain is refused.

Whoever sets ``privacy.sample.target_epsilon`` expects a guarantee: a run that would ignore it must
not begin. Only keys that the user gave are looked at, not those that groups and recipes bring.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
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
from dp_fedmed.config.tree import get, leaf_keys
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
        """Whether the condition is one of this key's."""
        return key in self.keys or key.startswith(
            tuple(section for section in self.keys if section.endswith("."))
        )


def _trains(config: Config) -> bool:
    return config.task.kind is not TaskKind.anomaly


def _is_private(config: Config) -> bool:
    return config.privacy.style is not PrivacyStyle.none


def _releases_sums(config: Config) -> bool:
    return _is_private(config) and not config.releases_rows


def _partition(name: PartitionName) -> Callable[[Config], bool]:
    return lambda config: config.data.partition.name is name


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
    Effect(
        ("privacy.sample.calibration",),
        ("privacy.sample.noise_multiplier",),
        lambda config: config.privacy.sample.noise_multiplier is None,
        "privacy.sample.target_epsilon and no privacy.sample.noise_multiplier",
    ),
    Effect(
        ("privacy.user.target_quantile", "privacy.user.clip_lr"),
        ("privacy.user.clipping",),
        lambda config: config.privacy.user.clipping is Clipping.adaptive,
        "privacy.user.clipping=adaptive",
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
    Effect(
        ("training.momentum",),
        ("training.optimizer",),
        lambda config: config.training.optimizer is OptimizerName.sgd,
        "training.optimizer=sgd",
    ),
    Effect(
        ("training.local_epochs",),
        ("training.local_steps",),
        lambda config: config.training.local_steps is None,
        "training.local_steps=null",
    ),
    Effect(
        ("anomaly.",),
        (KIND,),
        lambda config: not _trains(config),
        "an anomaly task, such as task=textures",
    ),
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
    Effect(
        ("anomaly.neighbours",), (STYLE,), lambda config: not _is_private(config), "privacy=none"
    ),
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
    *(
        Effect((f"data.partition.{key}",), (PARTITION,), _partition(name), f"{PARTITION}={name}")
        for key, name in (
            ("alpha", PartitionName.dirichlet),
            ("classes_per_client", PartitionName.pathological),
            ("skew", PartitionName.size_skewed),
        )
    ),
    Effect(
        ("federation.weighting",),
        (TOPOLOGY, KIND, STYLE),
        _averages,
        "federation.topology=federated and answers that are averaged",
    ),
    Effect(
        ("federation.server_momentum",),
        ("federation.server_optimizer",),
        lambda config: config.federation.server_optimizer is not ServerOptimizerName.fedavg,
        "federation.server_optimizer=fedavgm or fedadam",
    ),
    Effect(
        ("federation.server_beta2", "federation.server_tau"),
        ("federation.server_optimizer",),
        lambda config: config.federation.server_optimizer is ServerOptimizerName.fedadam,
        "federation.server_optimizer=fedadam",
    ),
    Effect(
        ("federation.client_evaluate_max",),
        ("federation.client_evaluate_every",),
        lambda config: config.federation.client_evaluate_every > 0,
        "federation.client_evaluate_every=5 or so",
    ),
    Effect(
        ("federation.connect_timeout",),
        ("engine.name",),
        lambda config: config.engine.name is EngineName.ray,
        "engine=ray, or flwr run",
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


def in_vain(config: Config, given: Iterable[str]) -> dict[str, Effect]:
    """Those of the given keys that this run ignores; one that is set to null asks for nothing."""
    found = {}
    for key in given:
        missing = unmet(config, key)
        if missing is not None and _value(config, key) is not None:
            found[key] = missing
    return found


def refuse_in_vain(runs: Iterable[Config], given: Sequence[str]) -> None:
    """Refuse a key that has an effect in none of the runs that it was given for.

    Args:
        runs: one, or the jobs of a sweep; no more of them are made than it takes.
        given: the keys that the user gave.

    Raises:
        ConfigError: naming the key, its value, and what would give it an effect.
    """
    idle: dict[str, Effect] = {}
    for config in runs:
        idle = in_vain(config, idle or given)
        if not idle:
            return
    for key, missing in idle.items():
        standing = " ".join(f"{by}={_shown(get(config, by))}" for by in missing.by)
        raise ConfigError(
            f"{key}={_shown(_value(config, key))} has no effect with {standing}: it needs "
            f"{missing.needs}; add that, or leave {key} out"
        )


def _value(config: Config, key: str) -> Any:
    if key.startswith("model.args."):
        return config.model.args.get(key.split(".")[2], "")
    return get(config, key)


def _shown(value: Any) -> str:
    return "null" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def given_keys(words: Iterable[str]) -> list[str]:
    """The leaf keys that override words set; group choices and Hydra's own are not among them.

    >>> given_keys(["privacy=sample", "seed=1", "++model.args.hidden=[8]", "data={path: /x}"])
    ['seed', 'model.args.hidden', 'data.path']
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser

    found: list[str] = []
    for override in OverridesParser.create().parse_overrides(list(words)):
        if not override.is_delete():
            found += _leaves(override.key_or_group, override.value())
    return found


def keys_in_own_files(runtime: Any, ours: Path) -> list[str]:
    """The leaf keys that YAML files of the user's own set, of those that Hydra composed.

    Args:
        runtime: Hydra's `hydra.runtime`, which knows the folders and the choices.
        ours: the folder whose files bring defaults, not wishes.
    """
    found: list[str] = []
    folders = [Path(source.path) for source in runtime.config_sources if source.schema == "file"]
    for group, choice in runtime.choices.items():
        name = str(group).partition("@")[0]
        files = [folder / name / f"{choice}.yaml" for folder in folders]
        file = next((file for file in files if file.is_file()), None)
        if file is not None and not file.is_relative_to(ours):
            found += keys_of_file(file, name)
    return found


def keys_of_file(file: Path, group: str) -> list[str]:
    """The leaf keys that a group's file sets, by the package that its first line names."""
    from omegaconf import OmegaConf

    named = re.match(r"#\s*@package\s+(\S+)", file.read_text(encoding="utf-8"))
    package = named[1] if named else group.replace("/", ".")
    keys = keys_of_tree(
        OmegaConf.to_container(OmegaConf.load(file)),
        "" if package == "_global_" else f"{package}.",
    )
    return [key for key in keys if key in leaf_keys() or key.startswith("model.args.")]


def keys_of_tree(tree: Any, prefix: str = "") -> list[str]:
    """The dotted keys of a YAML tree's values; `model.args` is one value.

    >>> keys_of_tree({"seed": 1, "data": {"path": "/x"}, "model": {"args": {"a": 1}}})
    ['seed', 'data.path', 'model.args']
    """
    if not isinstance(tree, dict):
        return []
    found = []
    for key, value in tree.items():
        dotted = f"{prefix}{key}"
        if isinstance(value, dict) and dotted not in leaf_keys():
            found += keys_of_tree(value, f"{dotted}.")
        elif dotted not in ("defaults", "hydra"):
            found.append(dotted)
    return found


def _leaves(key: str, value: Any) -> list[str]:
    if key in leaf_keys() or key.startswith("model.args."):
        return [key]
    if isinstance(value, dict):
        return [leaf for inner, held in value.items() for leaf in _leaves(f"{key}.{inner}", held)]
    return []  # a group, or a key that is refused elsewhere
