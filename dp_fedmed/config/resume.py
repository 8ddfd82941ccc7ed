"""Settings of a resumed run: its own, changed by the overrides that were given."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dp_fedmed.config.arithmetic import changed, refuse_other_run
from dp_fedmed.config.checks import RESUME
from dp_fedmed.config.choices import EngineName
from dp_fedmed.config.composition import default_runs_dir, from_dictconfig, from_yaml, schema
from dp_fedmed.config.overrides import GROUPS, assigned, conf_dir, keys_of_file, parsed
from dp_fedmed.config.schema import Config
from dp_fedmed.errors import ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig


def resume_words(words: Sequence[str]) -> list[str]:
    """Translates `resume=RUN_DIR` into that run directory and its last checkpoint.

    >>> resume_words(["resume=last", "run_dir=/runs/a"])
    ['resume=last', 'run_dir=/runs/a']
    """
    meant = []
    for word in words:
        value = word.removeprefix("resume=").strip("'\"")
        if not word.startswith("resume=") or RESUME.fullmatch(value):
            meant.append(word)
            continue
        path = Path(value).expanduser()
        if not path.is_dir():
            raise ConfigError(
                f"resume={value} is neither last, best or round:3 nor a run directory: for example "
                f"resume={Path(default_runs_dir()) / 'my_run'}"
            )
        meant += [f"run_dir={quoted(str(path.resolve()))}", "resume=last"]
    given = {word.split("=")[0] for word in meant}
    if "resume" in given and "run_dir" not in given:
        raise ConfigError("resume=… needs to know which run: give run_dir=/absolute/path with it")
    return meant


def resumed(tree: DictConfig, overrides: Sequence[str]) -> Config:
    """The settings of the run at `run_dir`, changed by these overrides only.

    Args:
        tree: what Hydra composed from the overrides; its untouched values are not used.
        overrides: Hydra's words as the user gave them.
    """
    from omegaconf import OmegaConf

    stored = stored_settings(Path(str(tree.run_dir)))
    merged = OmegaConf.merge(schema(), OmegaConf.create(stored.to_yaml()))
    touched = _touched(tree, overrides, stored)
    for key in touched:
        OmegaConf.update(merged, key, OmegaConf.select(tree, key), merge=False)
    if merged.engine.name is not EngineName.ray and "engine.address" not in touched:
        merged.engine.address = None  # of the cluster that the run was on
    merged.run_dir = str(tree.run_dir)
    config = from_dictconfig(merged)  # type: ignore[arg-type]
    refuse_other_run(changed(stored, config))
    return config


def stored_settings(run_dir: Path) -> Config:
    """Reads the settings of the run in a directory."""
    from yaml import YAMLError

    file = run_dir / "config.yaml"
    if not file.is_file():
        raise ConfigError(f"run_dir={run_dir} holds no run to resume: {file} is missing")
    try:
        return from_yaml(_stored_text(run_dir), run_dir)
    except ConfigError:
        raise
    except (ValueError, YAMLError) as error:
        raise ConfigError(f"{file} cannot be read, restore it: {error}") from error


def another_version(key: str, run_dir: Path | None) -> str:
    """Explains what to do with stored settings that have a key unknown to this version."""
    from dp_fedmed.version import __version__

    writer = _writer(run_dir)
    place = "the stored settings" if run_dir is None else f"{run_dir / 'config.yaml'}"
    if writer == __version__:
        return (
            f"{place} has the setting {key!r}, which dp-fedmed {__version__} does not have, though "
            "it wrote the file: take out what was put in by hand"
        )
    return (
        f"{place} has the setting {key!r}, which dp-fedmed {__version__} does not have: it was "
        f"written by {f'dp-fedmed {writer}' if writer else 'another version'}. Resume with that "
        f"version (pip install dp-fedmed=={writer or '…'}), or start a new run; a shared "
        "data_ledger adds up what both spend. docs/upgrades.md says what is read across versions"
    )


def _writer(run_dir: Path | None) -> str | None:
    """The version that last computed a run."""
    if run_dir is None:
        return None
    try:
        held = json.loads((run_dir / "environment.json").read_text(encoding="utf-8"))
        return str(held["stretches"][-1]["versions"]["dp_fedmed"])
    except (OSError, ValueError, LookupError, TypeError):
        return None


def stored_groups(overrides: Sequence[str]) -> list[str]:
    """The group choices (task and style) of the run that is resumed."""
    given = assigned(overrides)
    if "resume" not in given or "run_dir" not in given:
        return []
    import yaml

    folder = Path(given["run_dir"].strip("'\""))
    try:
        content = yaml.safe_load(_stored_text(folder))
        task = task_group(content["task"]["name"], content["data"]["name"])
        stored = {"task": task, "privacy": content["privacy"]["style"]}
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        return []  # opening the run reports what is wrong
    return [
        f"{group}={name}"
        for group, name in stored.items()
        if group not in given and (conf_dir() / group / f"{name}.yaml").is_file()
    ]


def task_group(name: str, data_name: str) -> str:
    """The choice of `task=` that a run was made with: some tasks are named by their data.

    >>> task_group("chest_2024", "medmnist"), task_group("digits", "digits")
    ('medmnist', 'digits')
    """
    return data_name if (conf_dir() / "task" / f"{data_name}.yaml").is_file() else name


def _stored_text(run_dir: Path) -> str:
    """The settings that a run's ledger holds, else those of `config.yaml`.

    A crash may have come before `config.yaml` had them. They are not trusted here: the server
    checks the ledger before it resumes.
    """
    try:
        lines = (run_dir / "private" / "ledger.jsonl").read_bytes().splitlines()
        last = next(line for line in reversed(lines) if b'"config":"' in line)
        if text := str(json.loads(last)["body"]["config"]):
            return text
    except (OSError, StopIteration, ValueError, KeyError, TypeError):
        pass
    return (run_dir / "config.yaml").read_text(encoding="utf-8")


def _touched(tree: DictConfig, overrides: Sequence[str], stored: Config) -> list[str]:
    """The keys that overrides set: their own, or those of group choices that are new."""
    from omegaconf import OmegaConf

    task = task_group(stored.task.name, stored.data.name)
    known = {"task": task, "privacy": str(stored.privacy.style)}
    keys: list[str] = []
    for text in overrides:
        override = parsed(text)
        key = override.key_or_group
        if override.is_delete():
            raise ConfigError(f"{text} deletes a setting: give it another value instead")
        if known.get(key) == str(override.value()) or key.startswith("hydra"):
            continue  # what the run has anyway
        if key not in GROUPS:
            keys.append(key)
            continue
        file = conf_dir() / key / f"{override.value()}.yaml"
        if file.is_file():  # the keys of a user's own group folder cannot be told apart
            named = keys_of_file(file, key)
            keys += [leaf for leaf in named if OmegaConf.select(tree, leaf) is not None]
    return keys


def quoted(value: str) -> str:
    """Quotes a text for Hydra, whatever characters are in it."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
