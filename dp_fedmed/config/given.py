"""Which settings a user gave: in overrides, and in YAML files of their own."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dp_fedmed.config.overrides import parsed
from dp_fedmed.config.tree import leaf_keys


def given_keys(words: Iterable[str]) -> list[str]:
    """The leaf keys that override words set; group choices and Hydra's own are not among them.

    >>> given_keys(["privacy=sample", "seed=1", "++model.args.hidden=[8]", "data={path: /x}"])
    ['seed', 'model.args.hidden', 'data.path']
    """
    found: list[str] = []
    for override in map(parsed, words):
        if not override.is_delete():
            found += _leaves(override.key_or_group, override.value())
    return found


def keys_in_own_files(runtime: Any, ours: Path) -> list[str]:
    """The leaf keys that YAML files of the user's own set, of those that Hydra composed.

    Args:
        runtime: Hydra's `hydra.runtime`, which knows the folders and the choices.
        ours: the folder of our own files, whose keys the user did not give.
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
