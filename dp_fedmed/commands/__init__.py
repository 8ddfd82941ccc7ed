"""What `dp-fedmed` can be told to do: one module a command, each with its help and `main`.

A command's `main` takes the words after its name and returns an exit code.
"""

from __future__ import annotations

from collections.abc import Sequence

_CONFIG_DIR = ("--config-dir", "-cd")


def with_config_dir(arguments: Sequence[str]) -> list[str]:
    """Hydra's `--config-dir FOLDER` as an override that every command knows, from any folder.

    Raises:
        ConfigError: if there is no such folder.

    >>> with_config_dir(["task=mine", "--config-dir", "/"])
    ["hydra.searchpath=['file:///']", 'task=mine']
    """
    from pathlib import Path

    from dp_fedmed.errors import ConfigError

    words, kept, folders = list(arguments), [], []
    while words:
        flag, equals, value = words.pop(0).partition("=")
        if flag not in _CONFIG_DIR:
            kept.append(f"{flag}{equals}{value}")
            continue
        folder = Path(value if equals else words.pop(0) if words else "").expanduser()
        if not folder.is_dir() or not str(folder):
            raise ConfigError(
                f"{flag} {folder.absolute()} is not a folder: give one that holds groups of your "
                "own, for example one with task/my_task.yaml in it"
            )
        folders.append(folder.resolve())
    if not folders:
        return kept
    if any("hydra.searchpath" in word for word in kept):
        raise ConfigError("--config-dir and hydra.searchpath=[…] are two ways to say one thing")
    places = ",".join("'file://" + str(folder).replace("'", "\\'") + "'" for folder in folders)
    return [f"hydra.searchpath=[{places}]", *kept]


def refuse_flags(command: str, words: Sequence[str]) -> None:
    """Refuse a flag that the command does not have.

    Raises:
        ConfigError: naming the command that has Hydra's flags.
    """
    from dp_fedmed.errors import ConfigError

    for word in words:
        if word.startswith("-"):
            raise ConfigError(
                f"{command} has no flag {word}; see dp-fedmed {command} --help (--cfg and --info "
                "are flags of dp-fedmed run)"
            )
