"""`dp-fedmed`: the command line. Heavy imports happen where a command needs them."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dp_fedmed.config import Config

HELP = """\
dp-fedmed: differentially private federated learning for medicine.

Usage: dp-fedmed COMMAND [arguments]

Commands:
  run      train a federation, or sweep over many   dp-fedmed run task=digits
  resume   go on with a run                         dp-fedmed resume checkpoints/my_run
  ledger   what a run has spent, checked            dp-fedmed ledger verify checkpoints/my_run
  data     who would hold which records             dp-fedmed data data.partition.name=dirichlet

dp-fedmed run --help      groups, keys and examples
dp-fedmed run --cfg job   every setting with the value it would have
dp-fedmed --version       the installed version

A run writes one directory: config.yaml, metrics.jsonl, model.safetensors, privacy_report.json,
metrics.png, partition.png, run.log, round_NNNN/ to go on from, and private/. Its place is printed
at the end, and is yours to choose with run_dir=/absolute/path.
"""

EXIT_STOPPED, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns 0 (well), 1 (stopped early), 2 (wrong settings) or 130 (Ctrl-C)."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    commands: dict[str, Callable[[list[str]], int]] = {
        "run": _run,
        "resume": _resume,
        "ledger": _ledger,
        "data": _data,
    }
    if not given or given[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0
    if given[0] in ("-V", "--version"):
        from dp_fedmed import __version__

        print(f"dp-fedmed {__version__}")
        return 0
    if given[0] not in commands:
        near = difflib.get_close_matches(given[0], commands, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        print(f"dp-fedmed: no command {given[0]!r}{hint} See dp-fedmed --help", file=sys.stderr)
        return EXIT_USAGE
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    from dp_fedmed.config import ConfigError

    try:
        return commands[given[0]](given[1:])
    except ConfigError as error:
        print(f"dp-fedmed: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:
        if not _is_refusal(error):
            raise
        print(f"dp-fedmed: {error}", file=sys.stderr)
        return EXIT_STOPPED


def _is_refusal(error: Exception) -> bool:
    """Whether an error's message is a sentence for the user."""
    from dp_fedmed.federation.checkpoint import CheckpointError
    from dp_fedmed.federation.durable import RunLocked
    from dp_fedmed.privacy.ledger import LedgerError

    known = isinstance(error, CheckpointError | RunLocked | LedgerError)
    return known or (isinstance(error, OSError) and error.filename is not None)


def entry() -> None:
    """The console script."""
    sys.exit(main())


# Hydra's flags that take the next word as their value.
_VALUED_FLAGS = {
    *("--cfg", "-c", "--package", "-p", "--config-dir", "-cd", "--info", "-i"),
    *("--config-name", "-cn", "--config-path", "-cp"),
}


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


def _run(arguments: list[str]) -> int:
    import hydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from dp_fedmed import config

    config.register()
    checked = _checked_arguments(config.resume_words(arguments))
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


def _run_job(tree: Any) -> int:
    """One job of Hydra's: a whole federation. A failed job of a sweep does not end the sweep."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    from dp_fedmed import config as configuration

    output = Path(HydraConfig.get().runtime.output_dir).absolute()
    try:
        tree.run_dir = str(output)
        overrides = list(HydraConfig.get().overrides.task)
        if tree.resume is not None:
            if HydraConfig.get().mode == RunMode.MULTIRUN:
                raise configuration.ConfigError("resume=… goes on with one run, not with a sweep")
            return _federate(_with_absolute_data_path(configuration.resumed(tree, overrides)))
        configuration.explicit_groups_win(tree, overrides)
        config = _with_absolute_data_path(configuration.from_dictconfig(tree))
        if HydraConfig.get().mode == RunMode.MULTIRUN:
            print(f"\n#{HydraConfig.get().job.num}: {' '.join(overrides)}", flush=True)
        return _federate(config)
    except configuration.ConfigError as error:
        print(f"dp-fedmed: {error}", file=sys.stderr)
        if output.is_dir() and not any(output.iterdir()):
            output.rmdir()
        return EXIT_USAGE


def _with_absolute_data_path(config: Config) -> Config:
    """A data.path relative to the caller's folder means the same on every engine."""
    path = config.data.path
    if path is None or not Path(path).exists():
        return config  # not a path from here: a name, or the loader says what is missing
    from dataclasses import replace

    return config.replace(data=replace(config.data, path=str(Path(path).resolve())))


def _federate(config: Config) -> int:
    from rich.console import Console

    console = Console()
    with console.status("loading PyTorch, Flower and the data"):
        from dp_fedmed.federation.engines import run_federation
        from dp_fedmed.reporting.display import ConsoleDisplay
        from dp_fedmed.reporting.run_log import quiet_console

        quiet_console()
        from dp_fedmed.federation.resume import RunFinished

    try:
        result = run_federation(config, ConsoleDisplay(config, console))
    except RunFinished as finished:
        console.print(str(finished), soft_wrap=True, highlight=False)
        return 0
    if result.stopped.startswith("interrupted"):
        return EXIT_INTERRUPTED
    return 0 if result.stopped == "completed" else EXIT_STOPPED


RESUME_HELP = """\
dp-fedmed resume RUN_DIR [overrides]: go on with a run that was stopped, killed or cut off.

  dp-fedmed resume checkpoints/my_run                            from its last checkpoint
  dp-fedmed resume checkpoints/my_run resume=round:10            from an older one
  dp-fedmed resume checkpoints/my_run federation.num_rounds=40   with more rounds
  dp-fedmed resume checkpoints/my_run new_phase=true privacy.sample.target_epsilon=5

The settings are those that the run had; overrides change single ones. What the guarantee rests on
(noise, clipping, sampling rates, deltas, data, model) changes only in a new phase, whose cost is
added to what is spent. What was spent stays spent, whichever checkpoint is gone on from.
"""


def _resume(arguments: list[str]) -> int:
    if not arguments or {"-h", "--help"} & set(arguments):
        print(RESUME_HELP, end="")
        return 0 if arguments else EXIT_USAGE
    from dp_fedmed.config import ConfigError, compose, resume_words

    folder, *overrides = arguments
    if "=" in folder or not Path(folder).is_dir():
        raise ConfigError(f"{folder} is not a run directory: for example checkpoints/my_run")
    path = str(Path(folder).resolve()).replace("'", "\\'")
    for word in overrides:
        place = word.removeprefix("resume=")
        if word.startswith("run_dir=") or (place != word and Path(place).is_dir()):
            raise ConfigError(f"{word} names another run directory than {folder}: give one of them")
    chosen = [] if any(word.startswith("resume=") for word in overrides) else ["resume=last"]
    words = resume_words([f"run_dir='{path}'", *chosen, *overrides])
    if not (Path(folder) / "config.yaml").is_file():
        raise ConfigError(f"{folder} holds no run to resume: config.yaml is missing")
    return _federate(_with_absolute_data_path(compose(words)))


LEDGER_HELP = """\
dp-fedmed ledger show RUN_DIR     the ledger as a table, with ε after every charge
dp-fedmed ledger verify RUN_DIR   check every record and checkpoint, and recompute ε

Both read private/ledger.jsonl and private/secret/ledger.key. Neither prints who took part, nor a
digest of anything private. verify exits with 1 if something does not hold.
"""


def _ledger(arguments: list[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        print(LEDGER_HELP, end="")
        return 0
    if len(arguments) != 2 or arguments[0] not in ("show", "verify"):
        print(LEDGER_HELP, end="", file=sys.stderr)
        return EXIT_USAGE
    from rich.console import Console

    from dp_fedmed.config import ConfigError
    from dp_fedmed.reporting.ledger import print_ledger, print_verification

    path = Path(arguments[1]).resolve()
    if not path.is_dir():
        raise ConfigError(f"{arguments[1]} is not a run directory: for example checkpoints/my_run")
    if arguments[0] == "show":
        print_ledger(path, Console())
        return 0
    return 0 if print_verification(path, Console()) else EXIT_STOPPED


def _data(arguments: list[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        print(
            "dp-fedmed data [overrides]: who would hold which records, as a table and a picture.\n"
            "Takes the same overrides as dp-fedmed run, for example\n"
            "  dp-fedmed data task=digits data.partition.name=dirichlet data.partition.alpha=0.1\n"
            "and writes partition.png into the folder where it is called."
        )
        return 0
    from rich.console import Console

    from dp_fedmed.config import compose
    from dp_fedmed.data import load_data, partition
    from dp_fedmed.reporting.partition import partition_table, plot_partition

    config = _with_absolute_data_path(compose(arguments))
    data = load_data(config.data, seed=config.seed)
    parts = partition(
        data,
        config.data.partition,
        num_clients=config.federation.num_clients,
        seed=config.seed,
    )
    Console().print(partition_table(data, parts))
    picture = Path.cwd() / "partition.png"
    plot_partition(data, parts, picture)
    print(f"Picture: {picture}")
    return 0
