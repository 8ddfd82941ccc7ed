"""One typed, validated, frozen configuration, from Hydra's overrides or Flower's run-config."""

from __future__ import annotations

import functools
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dp_fedmed.config.checks import num_releases, validate
from dp_fedmed.config.effects import refuse_without_effect
from dp_fedmed.config.overrides import (
    DEFAULT_TASK,
    assigned,
    check_overrides,
    conf_dir,
    given_keys,
    group_file,
    keys_in_own_files,
    keys_of_tree,
    own_folders,
    root_message,
)
from dp_fedmed.config.own_data import network, task_name
from dp_fedmed.config.schema import Config
from dp_fedmed.config.tree import leaf_keys, settings_help
from dp_fedmed.errors import ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig

RUN_CONFIG_GROUPS = ("task", "privacy", "federation", "training")  # the engine is Flower's there
RUN_CONFIG_DEFAULTS = {"task": DEFAULT_TASK, "privacy": "sample"}  # as in pyproject.toml


def default_runs_dir() -> str:
    """Where run directories go without `run_dir`: the checkout's, else the caller's folder."""
    checkout = Path(__file__).resolve().parents[2]
    if (checkout / "pyproject.toml").is_file() and (checkout / "checkpoints").is_dir():
        return str(checkout / "checkpoints")
    return str(Path.cwd() / "checkpoints")


@functools.cache
def register() -> None:
    """Registers the typed tree and our resolvers with Hydra; safe to call twice."""
    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf

    ConfigStore.instance().store(name="base_config", node=schema())
    resolvers: dict[str, Callable[..., Any]] = {
        "runs_dir": default_runs_dir,
        "releases": num_releases,
        "task_name": task_name,
        "network": network,
        "default_target": _default_target,
        "settings_help": settings_help,
    }
    for name, resolver in resolvers.items():
        OmegaConf.register_new_resolver(name, resolver, replace=True)


def _default_target(epsilon: float, *, _parent_: DictConfig) -> float | None:
    """The default target ε of a style; none if a noise multiplier is given."""
    return None if _parent_.get("noise_multiplier") is not None else epsilon


@functools.cache
def schema() -> DictConfig:
    """The typed tree as a writable node (OmegaConf makes frozen dataclasses read-only).

    It is shared: `OmegaConf.merge` copies it.
    """
    from omegaconf import DictConfig, OmegaConf

    def unlock(node: DictConfig) -> None:
        OmegaConf.set_readonly(node, None)
        for child in node.values():
            if isinstance(child, DictConfig):
                unlock(child)

    schema: DictConfig = OmegaConf.structured(Config)
    unlock(schema)
    return schema


def compose(overrides: Sequence[str] = (), *, given: Sequence[str] | None = None) -> Config:
    """The validated configuration that these Hydra overrides describe.

    Args:
        overrides: Hydra's words.
        given: the keys that a user gave, and that must have an effect; without it those of the
            overrides, and of the user's own files.

    >>> compose(["task=digits", "federation.num_rounds=3"]).federation.num_rounds
    3
    """
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import flag_override
    from yaml import YAMLError

    from dp_fedmed.config.resume import resumed, stored_groups

    register()
    own = own_folders(overrides)
    checked = [*stored_groups(overrides), *check_overrides(overrides, own=own)]
    has_own = own is None or bool(own)
    try:
        with initialize_config_dir(config_dir=str(conf_dir()), version_base="1.3"):
            tree = hydra_compose("config", overrides=checked, return_hydra_config=has_own)
    except (HydraException, YAMLError) as error:
        raise ConfigError(root_message(error)) from error
    if given is None:
        given = given_keys(overrides)
        given += keys_in_own_files(tree.hydra.runtime, conf_dir()) if has_own else []
    if has_own:
        with flag_override(tree, ["readonly", "struct"], False):
            del tree["hydra"]
    explicit_groups_win(tree, overrides)
    # A deployed client has no run directory: it must be given the run's settings again.
    if tree.resume is not None and (Path(str(tree.run_dir)) / "config.yaml").exists():
        config = resumed(tree, overrides)
    else:
        config = from_dictconfig(tree)
    refuse_without_effect([config], given)
    return config


def given_by_user(overrides: Sequence[str]) -> list[str]:
    """The keys that the user of a Hydra job gave: in these overrides, and in files of their own."""
    from hydra.core.hydra_config import HydraConfig

    return given_keys(overrides) + keys_in_own_files(HydraConfig.get().runtime, conf_dir())


def call_hydra(words: Sequence[str], job: Callable[[DictConfig], None]) -> None:
    """Runs a job as Hydra's main function, with the words of a command line."""
    import hydra

    register()
    sys.argv = list(words)
    main = hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")
    main(job)()


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


def from_yaml(text: str, run_dir: Path | None = None) -> Config:
    """A configuration as `Config.to_yaml` wrote it.

    Args:
        text: the YAML.
        run_dir: of the run whose settings they are, which knows the version that wrote them.

    Raises:
        ConfigError: for settings that cannot be, and for those of another version that this one
            does not have.
    """
    from omegaconf import OmegaConf

    stored = OmegaConf.create(text)
    _renew(stored)
    known = leaf_keys()
    unknown = [key for key in keys_of_tree(OmegaConf.to_container(stored)) if key not in known]
    if unknown:
        from dp_fedmed.config.resume import another_version

        raise ConfigError(another_version(unknown[0], run_dir))
    return from_dictconfig(stored)  # type: ignore[arg-type]


def _renew(stored: Any) -> None:
    """Puts settings of earlier versions into today's words, so that their runs are still read."""
    from omegaconf import OmegaConf

    trusted = OmegaConf.select(stored, "anomaly.server_trusted")
    if trusted is None:
        return
    del stored.anomaly["server_trusted"]
    decided = {
        "task.kind": "anomaly",
        "privacy.style": "sample",
        "federation.topology": "federated",
    }
    has_sums = OmegaConf.select(stored, "anomaly.mechanism") != "noisy_rows"
    if trusted and has_sums and all(OmegaConf.select(stored, k) == v for k, v in decided.items()):
        stored.privacy.noise = "server"


def from_run_config(run_config: Mapping[str, Any], run_id: int = 0) -> Config:
    """The configuration that Flower's run-config describes.

    The run-config carries the group choices by name, `run-dir`, and `overrides`: one string of
    further Hydra overrides. Without a `run-dir` the run's folder is named by Flower's run id.

    >>> from_run_config({"task": "digits", "overrides": "seed=7 federation.num_rounds=3"}).seed
    7
    """
    from dp_fedmed.config.resume import quoted, resume_words

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
        if word.lstrip("+~").startswith(("engine=", "engine.")):
            raise ConfigError(
                f"run-config key 'overrides' holds {word!r}, which has no effect: flwr run chooses "
                "where clients compute; leave it out"
            )
    further = resume_words(further)
    resumes = any(word.startswith("resume=") for word in further)
    own_data = any(word.startswith("data.name=") for word in further)
    # Defaults of pyproject.toml are not choices of the user: those of a stored run or the data win.
    unchosen = tuple(RUN_CONFIG_DEFAULTS) if resumes else ("task",) if own_data else ()
    chosen = [
        f"{group}={run_config[group]}"
        for group in RUN_CONFIG_GROUPS
        if run_config.get(group)
        and not (group in unchosen and run_config[group] == RUN_CONFIG_DEFAULTS[group])
    ]
    if not any(word.startswith("run_dir=") for word in further):
        # The app's folder is Flower's bundle and its working directory the SuperLink's; both apps
        # know the run's id, and so the same folder.
        runs = Path.home() / "dp_fedmed" / "checkpoints"
        chosen.append(f"run_dir={runs}/flower_{run_id}_${{task.name}}_${{privacy.style}}")
    # Flower's clients are waited for, whatever engine.name is.
    given = [key for key in given_keys(further) if key != "federation.connect_timeout"]
    return compose([*chosen, *further], given=given)


def explicit_groups_win(tree: DictConfig, overrides: Sequence[str]) -> None:
    """Lets a `training=` or `federation=` that the user names win over the recipe, in place."""
    from omegaconf import OmegaConf

    given = assigned(overrides)
    if "recipe" in given:
        return
    recipe = conf_dir() / "recipe" / f"{given.get('task', DEFAULT_TASK)}-{tree.privacy.style}.yaml"
    if not recipe.is_file():
        return
    tuned = OmegaConf.load(recipe)
    places = [*(own_folders(overrides) or ()), conf_dir()]
    for group in ("training", "federation"):
        file = group_file(places, group, given.get(group))
        if group not in given or file is None:
            continue
        for key, value in OmegaConf.load(file).items():
            dotted = f"{group}.{key!s}"
            if dotted not in given and OmegaConf.select(tuned, dotted) is not None:
                OmegaConf.update(tree, dotted, value)
