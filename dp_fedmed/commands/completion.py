"""Completion of words in a shell: `eval "$(dp-fedmed --shell-completion install=bash)"`."""

from __future__ import annotations

import os
from collections.abc import Sequence

from dp_fedmed.errors import ConfigError

SHELLS = ("bash", "zsh", "fish")


def complete(words: Sequence[str], commands: Sequence[str]) -> int:
    """Completes commands here, and groups and keys through Hydra.

    Args:
        words: `install=bash`, `uninstall=bash`, or `query=bash`, which the installed script asks.
        commands: of `dp-fedmed`.
    """
    from dp_fedmed.config import call_hydra

    what, _, shell = (words[0] if len(words) == 1 else "").partition("=")
    if what not in ("install", "uninstall", "query") or shell not in SHELLS:
        raise ConfigError(
            f"--shell-completion {' '.join(words)} is not known: for example eval "
            '"$(dp-fedmed --shell-completion install=bash)"'
        )
    line = os.environ.get("COMP_LINE", "").split(" ")
    if what == "query" and len(line) <= 2:
        print(" ".join(name for name in commands if name.startswith("".join(line[1:]))))
        return 0
    os.environ["COMP_LINE"] = " ".join([line[0], *line[2:]])  # Hydra knows no commands
    call_hydra(["dp-fedmed", "--shell-completion", words[0]], lambda tree: None)
    return 0
