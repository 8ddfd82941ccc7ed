"""`dp-fedmed run`: train a federation, or sweep over many."""

from __future__ import annotations

import os
import sys
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

    config.register()
    checked = _checked_arguments(resume_words(arguments))
    if {"-m", "--multirun"} & set(checked):
        folders = [word for word in checked if word.startswith("run_dir=")]
        checked += [f"hydra.sweep.dir={word.removeprefix('run_dir=')}" for word in folders]
    codes: list[int] = []

    def job(tree: Any) -> None:
        codes.append(_run_job(tree))
        if codes[-1] == EXIT_INTERRUPTED:
            raise KeyboardInterrupt  # a sweep ends too

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
    return max(codes, default=0)


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
    """One job of Hydra's: a whole federation. A failed job of a sweep does not end the sweep."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    from dp_fedmed import config as configuration
    from dp_fedmed.config_resume import resumed

    output = Path(HydraConfig.get().runtime.output_dir).absolute()
    try:
        tree.run_dir = str(output)
        overrides = list(HydraConfig.get().overrides.task)
        if tree.resume is not None:
            if HydraConfig.get().mode == RunMode.MULTIRUN:
                raise configuration.ConfigError("resume=… goes on with one run, not with a sweep")
            return federate(with_absolute_data_path(resumed(tree, overrides)))
        configuration.explicit_groups_win(tree, overrides)
        config = with_absolute_data_path(configuration.from_dictconfig(tree))
        if HydraConfig.get().mode == RunMode.MULTIRUN:
            print(f"\n#{HydraConfig.get().job.num}: {' '.join(overrides)}", flush=True)
        return federate(config)
    except configuration.ConfigError as error:
        print(f"dp-fedmed: {error}", file=sys.stderr)
        if output.is_dir() and not any(output.iterdir()):
            output.rmdir()
        return EXIT_USAGE


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
