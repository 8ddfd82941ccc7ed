"""Restricts the code that settings may name: ours, torchvision's, and what the user allows.

A configuration travels: in files, in Flower's run-config, from a server to its clients. Without
this, `model._target_=os.system` would be a command. The check is by name, before anything is
imported, and again on what the name leads to.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from dp_fedmed.errors import ConfigError

#: What each setting may name without being asked: code that makes networks, code that reads data.
DECLARED: dict[str, tuple[str, ...]] = {
    "model._target_": ("dp_fedmed.models", "torchvision.models"),
    "data.name": ("dp_fedmed.data",),
}
MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def is_within(path: str, modules: Sequence[str]) -> bool:
    """Whether a dotted path lies in one of these modules, part by part.

    >>> is_within("my_package.nets.Net", ["my_package"]), is_within("my_packages.Net", ["my"])
    (True, False)
    """
    return any(path == module or path.startswith(f"{module}.") for module in modules)


def refuse_code(
    key: str, path: str, allowed: Sequence[str], how: str = "allow_code=[{package}]"
) -> None:
    """Refuses an import path outside the declared and allowed modules, without importing it.

    Args:
        key: the setting that names it.
        path: the import path.
        allowed: modules that the user allows besides the declared ones.
        how: says how to allow it, with `{package}` for its package.
    """
    if is_within(path, [*DECLARED[key], *allowed]):
        return
    raise ConfigError(
        f"{key}={path} names code outside {' and '.join(DECLARED[key])}: if it is yours and you "
        f"trust it, allow it with {how.format(package=path.split('.')[0])}"
    )


def import_named(key: str, path: str) -> Callable[..., Any]:
    """The class or function at an import path that `refuse_code` has let through.

    Names that a declared module only imports from elsewhere are refused.
    """
    module, _, name = path.rpartition(".")
    found = getattr(import_module(module), name)
    if not callable(found):
        raise ConfigError(f"{key}={path} is {type(found).__name__}, not a class or function")
    home = str(getattr(found, "__module__", None))
    if is_within(path, DECLARED[key]) and not is_within(home, DECLARED[key]):
        raise ConfigError(
            f"{key}={path} is code of {home}, which {module} only uses: name code of "
            f"{' or '.join(DECLARED[key])} itself"
        )
    return found  # type: ignore[no-any-return]
