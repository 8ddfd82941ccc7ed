"""One typed, validated, frozen configuration, from Hydra's overrides or from Flower's run-config.

`compose` and `from_run_config` are the only ways to obtain it. Nothing heavy is imported here:
`dp-fedmed run --help` depends on it.
"""

from __future__ import annotations

import difflib
import functools
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dp_fedmed.config_checks import METRICS, cohort_size, num_releases, validate
from dp_fedmed.config_choices import (
    AccountantName,
    Calibration,
    Clipping,
    EngineName,
    GradMode,
    Loss,
    MechanismName,
    OptimizerName,
    PartitionName,
    PrivacyStyle,
    SamplerName,
    ServerOptimizerName,
    TaskKind,
    Topology,
    Weighting,
)
from dp_fedmed.config_schema import (
    AnomalyConfig,
    CheckpointConfig,
    Config,
    ConfigError,
    DataConfig,
    EngineConfig,
    FederationConfig,
    ModelConfig,
    PartitionConfig,
    PrivacyConfig,
    SamplePrivacyConfig,
    TaskConfig,
    TrainingConfig,
    UserPrivacyConfig,
    get,
    leaf_keys,
    tree_keys,
)

if TYPE_CHECKING:
    from omegaconf import DictConfig

__all__ = [
    "METRICS",
    "AccountantName",
    "AnomalyConfig",
    "Calibration",
    "CheckpointConfig",
    "Clipping",
    "Config",
    "ConfigError",
    "DataConfig",
    "EngineConfig",
    "EngineName",
    "FederationConfig",
    "GradMode",
    "Loss",
    "MechanismName",
    "ModelConfig",
    "OptimizerName",
    "PartitionConfig",
    "PartitionName",
    "PrivacyConfig",
    "PrivacyStyle",
    "SamplePrivacyConfig",
    "SamplerName",
    "ServerOptimizerName",
    "TaskConfig",
    "TaskKind",
    "Topology",
    "TrainingConfig",
    "UserPrivacyConfig",
    "Weighting",
    "check_overrides",
    "cohort_size",
    "compose",
    "conf_dir",
    "explicit_groups_win",
    "from_dictconfig",
    "from_run_config",
    "from_yaml",
    "get",
    "leaf_keys",
    "register",
    "root_message",
    "tree_keys",
    "validate",
]

GROUPS = ("task", "privacy", "federation", "engine", "training", "recipe", "sweep")
RUN_CONFIG_GROUPS = ("task", "privacy", "federation", "training")  # the engine is Flower's there
RUN_CONFIG_DEFAULTS = {"task": "breast_cancer", "privacy": "none"}  # as in pyproject.toml


def conf_dir() -> Path:
    """The folder of the Hydra groups: in a wheel beside this file, else in the checkout or bundle.

    >>> (conf_dir() / "config.yaml").is_file()
    True
    """
    package = Path(__file__).resolve().parent
    for candidate in (package / "conf", package.parent / "conf"):
        if (candidate / "config.yaml").is_file():
            return candidate
    raise ConfigError(f"conf/config.yaml is missing beside {package.name}: reinstall dp-fedmed")


def default_runs_dir() -> str:
    """Where run directories go without `run_dir`: the checkout's, else the caller's folder."""
    checkout = Path(__file__).resolve().parent.parent
    if (checkout / "pyproject.toml").is_file() and (checkout / "checkpoints").is_dir():
        return str(checkout / "checkpoints")
    return str(Path.cwd() / "checkpoints")


@functools.cache
def register() -> None:
    """Make the typed tree and our two resolvers known to Hydra (safe to call twice)."""
    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf

    ConfigStore.instance().store(name="base_config", node=schema())
    OmegaConf.register_new_resolver("runs_dir", default_runs_dir, replace=True)
    OmegaConf.register_new_resolver("releases", num_releases, replace=True)


@functools.cache
def schema() -> DictConfig:
    """The typed tree as a writable node (OmegaConf makes frozen dataclasses read-only).

    One for all: whoever merges into it merges into a copy.
    """
    from omegaconf import DictConfig, OmegaConf

    def unlock(node: Any) -> None:
        node._set_flag("readonly", None)
        for key in node:
            child = node._get_node(key)
            if isinstance(child, DictConfig) and not child._is_none():
                unlock(child)

    schema: DictConfig = OmegaConf.structured(Config)
    unlock(schema)
    return schema


def compose(overrides: Sequence[str] = ()) -> Config:
    """The validated configuration that these Hydra overrides describe.

    >>> compose(["task=digits", "federation.num_rounds=3"]).federation.num_rounds
    3
    """
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException

    from dp_fedmed.config_resume import resumed, stored_groups

    register()
    checked = [*stored_groups(overrides), *check_overrides(overrides)]
    try:
        with initialize_config_dir(config_dir=str(conf_dir()), version_base="1.3"):
            tree = hydra_compose("config", overrides=checked)
            explicit_groups_win(tree, overrides)
            # A deployed client has no run directory: it must be given the run's settings again.
            if tree.resume is not None and (Path(str(tree.run_dir)) / "config.yaml").exists():
                return resumed(tree, overrides)
            return from_dictconfig(tree)
    except HydraException as error:
        raise ConfigError(root_message(error)) from error


def from_dictconfig(tree: DictConfig) -> Config:
    """Hydra's tree as our frozen, validated dataclasses."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        config = OmegaConf.to_object(OmegaConf.merge(schema(), tree))
    except OmegaConfBaseException as error:
        raise ConfigError(root_message(error)) from error
    if not isinstance(config, Config):
        raise ConfigError(f"expected a configuration tree, got {type(config).__name__}")
    validate(config)
    return config


def from_yaml(text: str) -> Config:
    """A configuration as `Config.to_yaml` wrote it."""
    from omegaconf import OmegaConf

    return from_dictconfig(OmegaConf.create(text))  # type: ignore[arg-type]


def from_run_config(run_config: Mapping[str, Any], run_id: int = 0) -> Config:
    """The configuration that Flower's run-config describes.

    The run-config carries the group choices by name, `run-dir`, and `overrides`: one string of
    further Hydra overrides. Without a `run-dir` the run's folder is named by Flower's run id.

    >>> from_run_config({"task": "digits", "overrides": "seed=7 federation.num_rounds=3"}).seed
    7
    """
    from dp_fedmed.config_resume import quoted, resume_words

    try:
        further = shlex.split(str(run_config.get("overrides", "")))
    except ValueError as error:
        raise ConfigError(f"run-config key 'overrides' cannot be split: {error}") from error
    if run_config.get("resume"):
        further.append(f"resume={quoted(str(run_config['resume']))}")
    if run_config.get("run-dir"):
        further.append(f"run_dir={quoted(str(run_config['run-dir']))}")
    for word in further:
        if word.lstrip("+~").startswith("hydra"):
            raise ConfigError(
                f"run-config key 'overrides' holds {word!r}: Hydra itself is not set up here, so "
                "leave it out"
            )
    further = resume_words(further)
    resumes = any(word.startswith("resume=") for word in further)
    chosen = [
        f"{group}={run_config[group]}"
        for group in RUN_CONFIG_GROUPS
        if run_config.get(group)
        and not (resumes and run_config[group] == RUN_CONFIG_DEFAULTS.get(group))
    ]
    if not any(word.startswith("run_dir=") for word in further):
        # The app's folder is Flower's bundle and its working directory the SuperLink's; both apps
        # know the run's id, and so the same folder.
        runs = Path.home() / "dp_fedmed" / "checkpoints"
        chosen.append(f"run_dir={runs}/flower_{run_id}_${{task.name}}_${{privacy.style}}")
    return compose([*chosen, *further])


def check_overrides(overrides: Sequence[str], *, own_groups: bool = False) -> list[str]:
    """Refuse an unknown key or group choice with the nearest right one, before Hydra sees it.

    Args:
        overrides: Hydra's words, `key=value` or `group=choice`.
        own_groups: the user has config folders of their own, so that unknown groups and choices are
            left to Hydra.

    Returns:
        The overrides as Hydra is to see them: `model.args` takes any key without Hydra's `++`.

    >>> check_overrides(["seed=1", "model.args.hidden=[64]"])
    ['seed=1', '++model.args.hidden=[64]']
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    known = sorted(tree_keys(Config))
    checked = []
    for text in overrides:
        try:
            override = OverridesParser.create().parse_override(text)
        except HydraException as error:
            raise ConfigError(
                f"cannot read the override {text!r}: write key=value, for example "
                "federation.num_rounds=3"
            ) from error
        key = override.key_or_group
        if key in GROUPS and not override.is_delete():
            if not own_groups:
                _check_choice(key, override.value())
        elif (
            key not in known
            and not key.startswith(("hydra", "model.args."))
            and not (own_groups and "." not in key)
        ):
            raise ConfigError(f"unknown key {key!r}{_nearest(key, [*known, *GROUPS])}")
        checked.append(f"++{text}" if text.startswith(("model.args.", "model.args=")) else text)
    given = {text.split("=")[0] for text in overrides}
    if "model._target_" in given and "recipe" not in given and not own_groups:
        checked.append("recipe=none")  # a recipe is tuned for its own model, not for the user's
    return checked


def explicit_groups_win(tree: DictConfig, overrides: Sequence[str]) -> None:
    """Let a `training=` or `federation=` that the user names stand over the recipe, in place."""
    from omegaconf import OmegaConf

    given = dict(text.split("=", 1) for text in overrides if "=" in text)
    if "recipe" in given:
        return
    recipe = (
        conf_dir() / "recipe" / f"{given.get('task', 'breast_cancer')}-{tree.privacy.style}.yaml"
    )
    if not recipe.is_file():
        return
    tuned = OmegaConf.load(recipe)
    for group in ("training", "federation"):
        file = conf_dir() / group / f"{given.get(group)}.yaml"
        if group not in given or not file.is_file():
            continue
        for key, value in OmegaConf.load(file).items():
            dotted = f"{group}.{key!s}"
            if dotted not in given and OmegaConf.select(tuned, dotted) is not None:
                OmegaConf.update(tree, dotted, value)


def _check_choice(group: str, value: Any) -> None:
    available = sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))
    if hasattr(value, "include"):  # glob(…): Hydra looks what there is
        return
    choices = value.list if hasattr(value, "list") else [value]
    for choice in choices:
        name = str(getattr(choice, "text", choice))
        if name not in available:
            raise ConfigError(
                f"{group}={name} is not offered{_nearest(name, available)}; "
                f"choose from {', '.join(available)}"
            )


def _nearest(word: str, known: Sequence[str]) -> str:
    match = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    if not match:
        leaves = {key.rsplit(".", 1)[-1]: key for key in reversed(known)}
        close = difflib.get_close_matches(word.rsplit(".", 1)[-1], list(leaves), n=1, cutoff=0.6)
        match = [leaves[leaf] for leaf in close]
    return f"; did you mean {match[0]!r}?" if match else "; see dp-fedmed run --cfg job"


_NOISE = ("object_type=", "reference_type=", "full_key:")


def root_message(error: BaseException) -> str:
    """The innermost explanation of a Hydra or OmegaConf error, on one line."""
    text = str(error)
    inner = error.__cause__ or error.__context__
    if inner is not None and str(inner) and str(inner) not in text:
        text = f"{text}: {inner}"
    lines = [line.strip() for line in text.splitlines()]
    kept = [line for line in lines if line and not line.startswith(_NOISE)]
    said = re.sub(r"\s+", " ", "; ".join(kept))
    unknown = re.search(r"Key '(\w+)' (?:is )?not in", said)
    return said + _nearest(unknown[1], sorted(tree_keys(Config))) if unknown else said
