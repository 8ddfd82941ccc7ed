"""Checks overrides before Hydra sees them, lists the keys they set, and words Hydra's errors."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from dp_fedmed.config.schema import Config
from dp_fedmed.config.tree import leaf_keys, tree_keys
from dp_fedmed.errors import ConfigError

DEFAULT_TASK = "breast_cancer"  # of conf/config.yaml and pyproject.toml
GROUPS = ("task", "privacy", "federation", "engine", "training", "recipe", "sweep")


def conf_dir() -> Path:
    """The folder of the Hydra groups: in a wheel beside this file, else in the checkout or bundle.

    >>> (conf_dir() / "config.yaml").is_file()
    True
    """
    package = Path(__file__).resolve().parents[1]
    for candidate in (package / "conf", package.parent / "conf"):
        if (candidate / "config.yaml").is_file():
            return candidate
    raise ConfigError(f"conf/config.yaml is missing beside {package.name}: reinstall dp-fedmed")


#: Keys of earlier versions, with what to say today.
RENAMED = {
    "anomaly.server_trusted": (
        "say privacy.noise=server instead of true, and privacy.noise=client instead of false"
    )
}


def check_overrides(overrides: Sequence[str], *, own: Sequence[Path] | None = ()) -> list[str]:
    """Refuses unknown keys and group choices, naming the nearest one that exists.

    Args:
        overrides: Hydra's words, `key=value` or `group=choice`.
        own: config folders of the user's own; None if there are some that cannot be looked into, so
            that unknown groups and choices are left to Hydra.

    Returns:
        The overrides as Hydra is to see them: `model.args` takes any key without Hydra's `++`.

    >>> check_overrides(["seed=1", "model.args.hidden=[64]"])
    ['seed=1', '++model.args.hidden=[64]']
    """
    known = sorted(tree_keys(Config))
    folders = [conf_dir(), *(own or ())]
    checked = []
    for text in overrides:
        override = parsed(text)
        key = override.key_or_group
        is_group = key in GROUPS or any((folder / key).is_dir() for folder in folders)
        if key.startswith(("hydra", "model.args.")):
            pass
        elif is_group and not override.is_delete():
            if own is not None and not isinstance(override.value(), dict):
                _check_choice(key, override.value(), folders)
        elif key not in known and (own is not None or "." in key):
            if key in RENAMED:
                raise ConfigError(f"{key} is no longer a key: {RENAMED[key]}")
            raise ConfigError(f"unknown key {key!r}{hint(key, overrides)}")
        elif key in known:
            _refuse_scalar(key, override)
        checked.append(f"++{text}" if text.startswith(("model.args.", "model.args=")) else text)
    given = assigned(overrides)
    own_data = "task" not in given and given.get("data.name", DEFAULT_TASK) != DEFAULT_TASK
    if ("model._target_" in given or own_data) and "recipe" not in given and own is not None:
        checked.append("recipe=none")  # a recipe is tuned for its own model and data
    return checked


def parsed(text: str) -> Any:
    """One override as Hydra reads it."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        return OverridesParser.create().parse_override(text)
    except HydraException as error:
        raise ConfigError(
            f"cannot read the override {text!r}: write key=value, for example "
            "federation.num_rounds=3"
        ) from error


def assigned(words: Sequence[str]) -> dict[str, str]:
    """The text on the right of each `key=text`."""
    return dict(word.split("=", 1) for word in words if "=" in word)


def own_folders(words: Sequence[str]) -> list[Path] | None:
    """The config folders that `hydra.searchpath` names; None if some are no folders of files.

    >>> own_folders(["seed=1", "hydra.searchpath=[file:///my/conf]"])
    [PosixPath('/my/conf')]
    """
    found: list[Path] = []
    for word in words:
        if not word.lstrip("+").startswith("hydra.searchpath"):
            continue
        value = parsed(word).value()
        for entry in value if isinstance(value, list) else [value]:
            place = str(getattr(entry, "text", entry))
            if "://" in place and not place.startswith("file://"):
                return None
            found.append(Path(place.removeprefix("file://")))
    return found


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
        file = group_file(folders, name, choice)
        if file is not None and not file.is_relative_to(ours):
            found += keys_of_file(file, name)
    return found


def group_file(folders: Iterable[Path], group: str, choice: object) -> Path | None:
    """The first file in these folders that defines a group's choice."""
    files = [folder / group / f"{choice}.yaml" for folder in folders]
    return next((file for file in files if file.is_file()), None)


def keys_of_file(file: Path, group: str) -> list[str]:
    """The leaf keys that a group's file sets, by the package that its first line names."""
    from omegaconf import OmegaConf

    named = re.match(r"#\s*@package\s+(\S+)", file.read_text(encoding="utf-8"))
    package = named[1] if named else group.replace("/", ".")
    prefix = "" if package == "_global_" else f"{package}."
    keys = keys_of_tree(OmegaConf.to_container(OmegaConf.load(file)), prefix)
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


def _check_choice(group: str, value: Any, folders: Sequence[Path]) -> None:
    available = sorted({file.stem for place in folders for file in (place / group).glob("*.yaml")})
    if hasattr(value, "include"):  # glob(…): Hydra looks what there is
        return
    choices = value.list if hasattr(value, "list") else [value]
    for choice in choices:
        name = str(getattr(choice, "text", choice))
        if name not in available:
            near = difflib.get_close_matches(name, available, n=1, cutoff=0.5)
            said = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigError(
                f"{group}={name} is not offered{said}; choose from {', '.join(available)}"
            )


def _refuse_scalar(key: str, override: Any) -> None:
    """Refuses a value for a section, such as `model=resnet18`, and names the key that was meant."""
    inner = [name for name in tree_keys(Config) if name.startswith(f"{key}.")]
    value = override.value()
    if not inner or isinstance(value, dict) or override.is_delete():
        return
    name = str(getattr(value, "text", value))
    wanted = f"{inner[0]}=…"
    if key == "model":
        ours = _networks().get(name.lower())
        place = f"torchvision.models.{name}" if ours is None else f"dp_fedmed.models.{ours}"
        wanted = f"model._target_={name if '.' in name else place}"
    elif key == "data":
        wanted = f"task={name} or data.name={name}"
    raise ConfigError(f"{key}={name} is not offered: {key} is no group; use {wanted}")


def _networks() -> dict[str, str]:
    """Our networks by their names in lower case: those that tasks and recipes use."""
    text = "".join(file.read_text(encoding="utf-8") for file in conf_dir().glob("*/*.yaml"))
    return {name.lower(): name for name in re.findall(r"dp_fedmed\.models\.([A-Z]\w*)", text)}


def hint(word: str, words: Sequence[str] = ()) -> str:
    """Suggests the key that was probably meant, preferably one that has an effect in this run."""
    from dp_fedmed.config.effects import unmet

    known = [*tree_keys(Config), *GROUPS]
    config = _without_unknown(words, known)
    missing = {key: None if config is None else unmet(config, key) for key in known}
    leaf = word.rsplit(".", 1)[-1]

    def likeness(key: str) -> float:
        alike = difflib.SequenceMatcher(None, word, key).ratio()
        own = key.rsplit(".", 1)[-1]
        named = 1.0 if leaf in own else difflib.SequenceMatcher(None, leaf, own).ratio() ** 2
        return alike + 0.4 * named + 0.1 * (missing[key] is None)

    best = max(known, key=likeness)
    if likeness(best) < 0.75:
        return "; see dp-fedmed run --cfg job"
    needed = missing[best]
    return f"; did you mean {best!r}" + ("?" if needed is None else f" with {needed.needs}?")


def _without_unknown(words: Sequence[str], known: Sequence[str]) -> Config | None:
    """The configuration of the words with known keys; None if they are not valid."""
    from dp_fedmed.config import compose

    sound = []
    for word in words:
        try:
            override = parsed(word)
        except ConfigError:
            continue
        if override.key_or_group in known and not override.is_sweep_override():
            sound.append(word)
    try:
        return compose(sound, given=())
    except ConfigError:
        return None


_TYPES = {"Integer": "a whole number", "Float": "a number", "bool": "true or false"}


def _wrong_value(key: str, value: str, reason: str) -> str:
    """Explains a value of the wrong type or choice."""
    if (choices := re.search(r"expected one of \[(.*)\]", reason)) is not None:
        gone = ""
        if (key, value) == ("privacy.sample.grad_mode", "ghost"):
            gone = "; ghost clipping is gone, since it cannot bound what a record does: use auto"
        return f"{key}={value} is not offered: choose from {choices[1]}{gone}"
    if "not a ListConfig" in reason:
        return f"{key}={value} is not a list: write {key}=[{value}]"
    kind = next((said for name, said in _TYPES.items() if name in reason), None)
    return f"{key}={value} does not fit: " + (reason if kind is None else f"it takes {kind}")


_NOISE = ("object_type=", "reference_type=", "full_key:")


def root_message(error: BaseException) -> str:
    """The innermost explanation of a Hydra, OmegaConf or YAML error, on one line."""
    text = str(error)
    inner = error.__cause__ or error.__context__
    if inner is not None and str(inner) and str(inner) not in text:
        text = f"{text}: {inner}"
    lines = [line.strip() for line in text.splitlines()]
    kept = [line for line in lines if line and not line.startswith(_NOISE)]
    said = re.sub(r"\s+", " ", "; ".join(kept))
    place = re.match(r"In '([\w/.-]+)': ", said)
    file = "" if place is None else f"{place[1]}.yaml: "
    unknown = re.search(r"Key '(\w+)' (?:is )?not in", said)
    if unknown:
        full = re.search(r"full_key: (\S+)", text)
        key = full[1] if full else unknown[1]
        return f"{file}unknown key {key!r}{hint(key)}"
    if (wrong := re.match(r"Error merging override \+*([\w.]+)=(.*?): (\w+ .*)", said)) is not None:
        return _wrong_value(*wrong.groups())
    group = re.search(r"Could not override '(\S+?)'", said)
    if group:
        return f"{file}the defaults list names {group[1]!r}, which is no group{hint(group[1])}"
    mark = getattr(error, "problem_mark", None)
    if mark is not None:  # YAML knows where
        what = getattr(error, "problem", None) or "it is not YAML"
        return f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}: {what}"
    return said
