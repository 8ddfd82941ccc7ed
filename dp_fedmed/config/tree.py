"""Walks the typed tree: its keys, what is declared of each, and a configuration's values."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any, get_type_hints

from dp_fedmed.config.schema import Config
from dp_fedmed.config.setting import Resume, Setting


def tree_keys(node: type, prefix: str = "") -> Iterable[str]:
    """Every dotted key of the typed tree, inner nodes included."""
    return declared(node, prefix)


@functools.cache
def settings() -> dict[str, Setting]:
    """Every dotted key that holds a value of its own, with its metadata.

    >>> settings()["training.lr"].within
    (1e-12, 1000.0)
    """
    return {key: known for key, known in declared(Config).items() if known is not None}


@functools.cache
def leaf_keys() -> tuple[str, ...]:
    """Every dotted key of the typed tree that holds a value of its own."""
    return tuple(settings())


def get(config: Config, key: str) -> Any:
    """The value at a dotted key, for example ``training.lr``."""
    section, _, name = key.partition("model.args.")
    if name and not section:
        return config.model.args.get(name.split(".")[0], "")
    return functools.reduce(getattr, key.split("."), config)


def assignment(config: Config, key: str) -> str:
    """A setting as it would be given on the command line.

    >>> assignment(Config(), "training.lr"), assignment(Config(), "data.path")
    ('training.lr=0.1', 'data.path=null')
    """
    value = get(config, key)
    return f"{key}={'null' if value is None else f'{value:g}' if type(value) is float else value}"


def settings_help() -> str:
    """One line per setting with its meaning and range, for `dp-fedmed run --help`."""
    lines = []
    for key, known in settings().items():
        span = "" if known.within is None else f" [{known.within[0]:g} to {known.within[1]:g}]"
        lines.append(f"{key:<36}{known.meaning}{span}")
    return "\n".join(lines)


def declared(
    node: type, prefix: str = "", resume: Resume = Resume.new_phase
) -> dict[str, Setting | None]:
    """Every dotted key below a dataclass with its metadata; None for the key of a section."""
    found: dict[str, Setting | None] = {}
    hints = get_type_hints(node)
    for item in dataclasses.fields(node):
        key, kind = f"{prefix}{item.name}", hints[item.name]
        if dataclasses.is_dataclass(kind):
            inner = item.metadata.get("resume", resume)
            found |= {key: None, **declared(kind, f"{key}.", inner)}  # type: ignore[arg-type]
            continue
        known = item.metadata.get("setting")
        if not isinstance(known, Setting):
            raise TypeError(f"{key} has no meaning, range and role: declare it with setting(…)")
        found[key] = dataclasses.replace(known, resume=known.resume or resume)
    return found
