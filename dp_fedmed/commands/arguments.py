"""Reads the words after a command's name: flags, overrides, and the directories that they name.

Every mistake is a `ConfigError` of one sentence, which `dp_fedmed.cli` prints.
"""

from __future__ import annotations

import argparse
import difflib
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from dp_fedmed.errors import ConfigError

if TYPE_CHECKING:
    from dp_fedmed.config import Config

CONFIG_DIR = ("--config-dir", "-cd")


class Arguments(argparse.ArgumentParser):
    """The parser of one command.

    Args:
        help_text: of the command, which begins with its usage: `dp-fedmed NAME …`.
        directory: what the first word names, for example RUN_DIR; None if it is an override.
        action: the words of which one comes before the directory, if the command has some.
        overrides: whether further words may follow.
    """

    def __init__(
        self,
        help_text: str,
        *,
        directory: str | None = None,
        action: Sequence[str] = (),
        overrides: bool = True,
    ) -> None:
        self.flags = ["--help", CONFIG_DIR[0]]
        usage = re.split(r"  |: |\n", help_text)[0]
        super().__init__(prog=" ".join(usage.split()[:2]), usage=usage, add_help=False)
        if action:
            self.add_argument("action", metavar="|".join(action), choices=action)
        if directory is not None:
            self.add_argument("directory", metavar=directory)
        if overrides:
            self.add_argument("overrides", nargs="*", default=[])

    def flag(self, *names: str, **more: Any) -> Arguments:
        """Adds a flag, as `add_argument` does; one without further words is true or false."""
        self.add_argument(*names, **(more or {"action": "store_true"}))
        self.flags.insert(-2, names[-1])
        return self

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        """The words by name; `--config-dir` is among the overrides.

        Raises:
            ConfigError: for words that the command does not take.
        """
        given, unknown = self.parse_known_intermixed_args(with_config_dir(words))
        for word in unknown:
            if not word.startswith("-"):
                self.error(f"{word} is a word too many")
            near = difflib.get_close_matches(word.split("=")[0], self.flags, n=1)
            hint = f"its flags are {', '.join(self.flags)} (--cfg and --info are dp-fedmed run's)"
            hint = f"did you mean {near[0]}?" if near else hint
            raise ConfigError(f"{self.prog.split()[1]} has no flag {word}; {hint}")
        return given

    def error(self, message: str) -> NoReturn:
        """Argparse's complaints, worded as those of all commands."""
        raise ConfigError(f"{message}; use {self.usage}, and see {self.prog} --help")


def take_flag(
    words: Sequence[str], names: Sequence[str]
) -> tuple[list[tuple[str, str]], list[str]]:
    """Takes a flag and its value out of the words: (what was taken, the other words).

    >>> take_flag(["seed=1", "--beside", "/runs/a", "--beside=/runs/b"], ["--beside"])
    ([('--beside', '/runs/a'), ('--beside', '/runs/b')], ['seed=1'])
    """
    left, taken, others = list(words), [], []
    while left:
        word = left.pop(0)
        flag, equals, value = word.partition("=")
        if flag not in names:
            others.append(word)
        else:
            taken.append((flag, value if equals else left.pop(0) if left else ""))
    return taken, others


def with_config_dir(arguments: Sequence[str]) -> list[str]:
    """Hydra's `--config-dir FOLDER` as an override that every command knows, from any folder.

    Raises:
        ConfigError: if there is no such folder.

    >>> with_config_dir(["task=mine", "--config-dir", "/"])
    ["hydra.searchpath=['file:///']", 'task=mine']
    """
    taken, kept = take_flag(arguments, CONFIG_DIR)
    folders = []
    for flag, value in taken:
        folder = Path(value).expanduser()
        if not value or not folder.is_dir():
            raise ConfigError(
                f"{flag} {folder.absolute() if value else '(nothing)'} is not a folder: give one "
                "that holds groups of your own, for example one with task/my_task.yaml in it"
            )
        folders.append(folder.resolve())
    if not folders:
        return kept
    if any("hydra.searchpath" in word for word in kept):
        raise ConfigError("--config-dir and hydra.searchpath=[…] are two ways to say one thing")
    places = ",".join("'file://" + str(folder).replace("'", "\\'") + "'" for folder in folders)
    return [f"hydra.searchpath=[{places}]", *kept]


def config_of(overrides: Sequence[str]) -> Config:
    """The configuration of overrides that were given in this folder."""
    from dp_fedmed.config import compose
    from dp_fedmed.config.own_data import with_absolute_data_path

    return with_absolute_data_path(compose(overrides))


def existing_directory(word: str, kind: str = "run directory") -> Path:
    """The directory of a run or a sweep that a user names; refused if there is none."""
    path = Path(word).expanduser()
    if not path.is_dir():
        raise ConfigError(f"{word} is not a {kind}: for example checkpoints/my_run")
    return path.resolve()


def output_directory(path: Path, flag: str = "") -> Path:
    """A directory for results, made before the work so that a bad place is known early.

    Raises:
        ConfigError: if nothing can be written there.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise ConfigError(
            f"{flag} {path} cannot be written: {error.strerror}; use a folder of your own".strip()
        ) from error
    return path
