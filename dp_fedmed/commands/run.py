"""`dp-fedmed run`: train a federation, or sweep over many."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dp_fedmed.commands.arguments import take_flag, with_config_dir
from dp_fedmed.config.own_data import with_absolute_data_path
from dp_fedmed.errors import EXIT_INTERRUPTED, EXIT_LOST, EXIT_STOPPED, EXIT_USAGE, ConfigError

if TYPE_CHECKING:
    from dp_fedmed.config import Config

# Hydra's flags that take the next word as their value.
_VALUED_FLAGS = (
    *("--cfg", "-c", "--package", "-p", "--config-name", "-cn", "--config-path", "-cp"),
    *("--experimental-rerun", "--info", "-i"),
)
_FLAGS = (
    *("--help", "-h", "--hydra-help", "--version", "--resolve", "--run", "-r", "--multirun", "-m"),
    *_VALUED_FLAGS,
)
_INFO = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")


def main(arguments: list[str]) -> int:
    """Train what the overrides describe."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    from dp_fedmed import config
    from dp_fedmed.config.resume import resume_words
    from dp_fedmed.sweeps import launcher

    arguments, beside = _without_beside(arguments)
    if {"--shell-completion", "-sc"} & set(arguments):
        from dp_fedmed.commands import COMMANDS
        from dp_fedmed.commands.completion import complete

        return complete([word for word in arguments if not word.startswith("-")], COMMANDS)
    arguments = with_config_dir(arguments)
    invocation = launcher.Invocation(_command(arguments), _new_settings)
    launcher.register(invocation)
    checked = _checked_arguments(resume_words(arguments))
    folders = [word.removeprefix("run_dir=") for word in checked if word.startswith("run_dir=")]
    checked += [f"hydra.sweep.dir={folder}" for folder in folders]
    if not any(word.startswith("hydra/launcher=") for word in checked):
        checked.append(f"hydra/launcher={launcher.NAME}")
        if not any(word.startswith("hydra/sweeper=") for word in checked):
            checked.append(f"hydra/sweeper={launcher.NAME}")
    codes: list[int] = []

    def job(tree: Any) -> None:
        codes.append(_run_job(tree, beside))
        if codes[-1] == EXIT_INTERRUPTED:
            raise KeyboardInterrupt  # a sweep of another launcher ends too

    os.environ["HYDRA_FULL_ERROR"] = "1"  # have its errors raised, so that we can word them
    try:
        config.call_hydra(["dp-fedmed run", *checked], job)
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise ConfigError(config.root_message(error)) from error
    except OSError as error:
        if codes or error.filename is None:
            raise
        raise ConfigError(f"run_dir={error.filename} cannot be made: {error.strerror}") from error
    finally:
        invocation.end()
    return max([*codes, invocation.exit_code])


def _without_beside(arguments: list[str]) -> tuple[list[str], Path | None]:
    """Takes `--beside` out of Hydra's words: the run whose metrics are shown beside this one's.

    >>> _without_beside(["seed=1", "--beside", "/runs/none"])
    (['seed=1'], PosixPath('/runs/none'))
    """
    taken, rest = take_flag(arguments, ["--beside"])
    if not taken:
        return arguments, None
    sweeps = any(word in ("-m", "--multirun") or word.startswith("sweep=") for word in rest)
    if sweeps or len(taken) > 1 or not taken[0][1]:
        raise ConfigError("--beside takes the directory of one ended run, and is for one run")
    return rest, Path(taken[0][1])


def _command(arguments: list[str]) -> list[str]:
    """The command as a sweep stores it: with absolute data paths, to resume it from any folder."""
    words = []
    for word in arguments:
        paths = word.removeprefix("data.path=").split(",")
        if word.startswith("data.path=") and all(Path(path).exists() for path in paths):
            word = "data.path=" + ",".join(str(Path(path).resolve()) for path in paths)
        words.append(word)
    return ["dp-fedmed", "run", *words]


def _checked_arguments(arguments: list[str]) -> list[str]:
    """Hydra's arguments, with our own checks of every override."""
    from dp_fedmed.config import check_overrides, own_folders

    flags: list[str] = []
    overrides: list[str] = []
    words = list(arguments)
    while words:
        word = words.pop(0)
        if not word.startswith("-"):
            overrides.append(word)
            continue
        flag, equals, _ = word.partition("=")
        if flag not in _FLAGS:
            raise ConfigError(f"run has no flag {flag}{_flag_hint(word, words)}")
        flags.append(word)
        if flag in ("--info", "-i") and not equals and (not words or words[0] not in _INFO):
            flags.append("all")  # else Hydra would read the next word as what to show
        elif flag in _VALUED_FLAGS and not equals and words:
            flags.append(words.pop(0))
    shows = [flag.split("=")[0] for flag in flags]
    if {"--cfg", "-c"} & set(shows) and "--resolve" not in shows:
        flags.append("--resolve")  # every key with the value that it would have
    own = own_folders(overrides)
    if {"--config-path", "-cp", "--config-name", "-cn"} & set(shows):
        own = None  # another tree altogether: what it offers, Hydra knows
    return [*flags, *check_overrides(overrides, own=own)]


def _flag_hint(word: str, after: Sequence[str]) -> str:
    """Suggests what was probably meant: a setting, which takes no dashes, or another flag."""
    from dp_fedmed.config import Config
    from dp_fedmed.config.overrides import GROUPS
    from dp_fedmed.config.tree import tree_keys

    flag, equals, value = word.partition("=")
    name = flag.lstrip("-").replace("-", "_")
    if not equals:
        value = next((w for w in after[:1] if "=" not in w and not w.startswith("-")), "…")
    name = {"epsilon": "target_epsilon", "delta": "target_delta"}.get(name, name)
    if name not in GROUPS:
        found = (key for key in tree_keys(Config) if key == name or key.endswith(f".{name}"))
        own = sorted(found, key=lambda key: not key.startswith("privacy.sample."))
        name = own[0] if own else ""
    if name:
        return f"; settings take no dashes: did you mean {name}={value}?"
    near = difflib.get_close_matches(flag, [*_FLAGS, "--config-dir"], n=1)
    return f"; did you mean {near[0]}?" if near else "; see dp-fedmed run --hydra-help"


def _run_job(tree: Any, beside: Path | None = None) -> int:
    """Runs one federation for Hydra: a single run, or a job of a launcher that is not ours."""
    from hydra.core.hydra_config import HydraConfig

    from dp_fedmed.config import given_by_user, refuse_without_effect
    from dp_fedmed.config.resume import resumed

    output = Path(HydraConfig.get().runtime.output_dir).absolute()
    try:
        overrides = list(HydraConfig.get().overrides.task)
        if tree.resume is not None:
            tree.run_dir = str(output)
            config = with_absolute_data_path(resumed(tree, overrides))
        else:
            config = _new_settings(tree, overrides, str(output))
        refuse_without_effect([config], given_by_user(overrides))
        return federate(config, beside)
    except ConfigError as error:
        print(f"dp-fedmed: {error.sentence()}", file=sys.stderr)
        if output.is_dir() and not any(output.iterdir()):
            output.rmdir()
        return EXIT_USAGE


def _new_settings(tree: Any, overrides: Sequence[str], run_dir: str) -> Config:
    """A new run's configuration, from the tree that Hydra composed of these overrides."""
    from dp_fedmed import config as configuration

    if tree.resume is not None:
        raise ConfigError(
            "resume=… resumes one run; a sweep is resumed by dp-fedmed resume SWEEP_DIR"
        )
    tree.run_dir = run_dir
    configuration.explicit_groups_win(tree, overrides)
    return with_absolute_data_path(configuration.from_dictconfig(tree))


def federate(config: Config, beside: Path | None = None) -> int:
    """Run a configuration with a display, and an ended run beside it; returns the exit code."""
    from rich.console import Console

    console = Console()
    with console.status("loading PyTorch, Flower and the data"):
        from dp_fedmed.launch import run_federation
        from dp_fedmed.reporting.display import ConsoleDisplay, other_run
        from dp_fedmed.reporting.run_log import quiet_console

        quiet_console()
        from dp_fedmed.errors import RunFinished
        from dp_fedmed.run.spent import LEDGER_FILE

    other = None if beside is None else other_run(beside, config)
    if config.resume is not None:
        console.print(f"Resuming {config.run_dir}", soft_wrap=True, highlight=False)
    try:
        result = run_federation(config, ConsoleDisplay(config, console, other))
    except RunFinished as finished:
        console.print(str(finished), soft_wrap=True, highlight=False)
        return 0
    except KeyboardInterrupt:  # at once: before the rounds, or while the end is written
        begun = (Path(config.run_dir) / LEDGER_FILE).is_file()
        console.print(
            f"Interrupted. Resume with: dp-fedmed resume {config.run_dir}"
            if begun
            else "Interrupted before the run began: nothing was spent.",
            soft_wrap=True,
            highlight=False,
        )
        return EXIT_INTERRUPTED
    if result.stopped.startswith("interrupted"):
        return EXIT_INTERRUPTED
    if result.stopped != "completed":
        return EXIT_STOPPED
    return EXIT_LOST if result.participation is not None and result.participation.lost else 0
