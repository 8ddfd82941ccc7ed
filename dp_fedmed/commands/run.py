"""`dp-fedmed run`: train a federation, or sweep over many."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dp_fedmed.commands import EXIT_INTERRUPTED, EXIT_STOPPED, EXIT_USAGE

if TYPE_CHECKING:
    from dp_fedmed.config import Config

# Hydra's flags that take the next word as their value.
_VALUED_FLAGS = {
    *("--cfg", "-c", "--package", "-p", "--config-dir", "-cd", "--info", "-i"),
    *("--config-name", "-cn", "--config-path", "-cp"),
}


def main(arguments: list[str]) -> int:
    """Train what the overrides describe."""
    import hydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from dp_fedmed import config
    from dp_fedmed.config_resume import resume_words
    from dp_fedmed.sweeps import launcher

    config.register()
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
        codes.append(_run_job(tree))
        if codes[-1] == EXIT_INTERRUPTED:
            raise KeyboardInterrupt  # a sweep of another launcher ends too

    sys.argv = ["dp-fedmed run", *checked]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # have its errors raised, so that we can word them
    decorate = hydra.main(
        version_base="1.3", config_path=str(config.conf_dir()), config_name="config"
    )
    try:
        decorate(job)()
    except (HydraException, OmegaConfBaseException) as error:
        raise config.ConfigError(config.root_message(error)) from error
    except OSError as error:
        if codes or error.filename is None:
            raise
        raise config.ConfigError(
            f"run_dir={error.filename} cannot be made: {error.strerror}"
        ) from error
    finally:
        invocation.end()
    return max([*codes, invocation.exit_code])


def _command(arguments: list[str]) -> list[str]:
    """The command that goes on with a sweep from any folder: data.path does not depend on one."""
    words = []
    for word in arguments:
        paths = word.removeprefix("data.path=").split(",")
        if word.startswith("data.path=") and all(Path(path).exists() for path in paths):
            word = "data.path=" + ",".join(str(Path(path).resolve()) for path in paths)
        words.append(word)
    return ["dp-fedmed", "run", *words]


def _checked_arguments(arguments: list[str]) -> list[str]:
    """Hydra's arguments, with our own checks of every override."""
    from dp_fedmed.config import check_overrides

    flags: list[str] = []
    overrides: list[str] = []
    previous = ""
    for word in arguments:
        is_flag = word.startswith("-") or previous in _VALUED_FLAGS
        (flags if is_flag else overrides).append(word)
        previous = word
    own = ("--config-dir", "-cd", "--config-path", "-cp")
    own_groups = any(flag.split("=")[0] in own for flag in flags) or any(
        word.lstrip("+").startswith("hydra.searchpath") for word in overrides
    )
    return [*flags, *check_overrides(overrides, own_groups=own_groups)]


def _run_job(tree: Any) -> int:
    """Hydra's one job, or one of a launcher that is not ours: a whole federation."""
    from hydra.core.hydra_config import HydraConfig

    from dp_fedmed.config import ConfigError
    from dp_fedmed.config_resume import resumed

    output = Path(HydraConfig.get().runtime.output_dir).absolute()
    try:
        overrides = list(HydraConfig.get().overrides.task)
        if tree.resume is not None:
            tree.run_dir = str(output)
            return federate(with_absolute_data_path(resumed(tree, overrides)))
        return federate(_new_settings(tree, overrides, str(output)))
    except ConfigError as error:
        print(f"dp-fedmed: {error}", file=sys.stderr)
        if output.is_dir() and not any(output.iterdir()):
            output.rmdir()
        return EXIT_USAGE


def _new_settings(tree: Any, overrides: Sequence[str], run_dir: str) -> Config:
    """A new run's configuration, of what Hydra has composed of these overrides."""
    from dp_fedmed import config as configuration

    if tree.resume is not None:
        raise configuration.ConfigError(
            "resume=… goes on with one run; a sweep goes on with dp-fedmed resume SWEEP_DIR"
        )
    tree.run_dir = run_dir
    configuration.explicit_groups_win(tree, overrides)
    return with_absolute_data_path(configuration.from_dictconfig(tree))


def with_absolute_data_path(config: Config) -> Config:
    """A data.path relative to the caller's folder means the same on every engine."""
    path = config.data.path
    if path is None or not Path(path).exists():
        return config  # not a path from here: a name, or the loader says what is missing
    from dataclasses import replace

    return config.replace(data=replace(config.data, path=str(Path(path).resolve())))


def federate(config: Config) -> int:
    """Run a configuration with a display on the console; returns the exit code."""
    from rich.console import Console

    console = Console()
    with console.status("loading PyTorch, Flower and the data"):
        from dp_fedmed.federation.engines import run_federation
        from dp_fedmed.reporting.display import ConsoleDisplay
        from dp_fedmed.reporting.run_log import quiet_console

        quiet_console()
        from dp_fedmed.federation.resume import RunFinished
        from dp_fedmed.federation.run_store import LEDGER_FILE

    if config.resume is not None:
        console.print(f"Going on with {config.run_dir}", soft_wrap=True, highlight=False)
    try:
        result = run_federation(config, ConsoleDisplay(config, console))
    except RunFinished as finished:
        console.print(str(finished), soft_wrap=True, highlight=False)
        return 0
    except KeyboardInterrupt:  # at once: before the rounds, or while the end is written
        if (Path(config.run_dir) / LEDGER_FILE).is_file():
            console.print(
                f"Interrupted. Go on with: dp-fedmed resume {config.run_dir}",
                soft_wrap=True,
                highlight=False,
            )
        return EXIT_INTERRUPTED
    if result.stopped.startswith("interrupted"):
        return EXIT_INTERRUPTED
    return 0 if result.stopped == "completed" else EXIT_STOPPED
