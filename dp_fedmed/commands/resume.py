"""`dp-fedmed resume`: go on with a run."""

from __future__ import annotations

from pathlib import Path

from dp_fedmed.errors import EXIT_USAGE

HELP = """\
dp-fedmed resume RUN_DIR [overrides]: go on with a run that was stopped, killed or cut off.
dp-fedmed resume SWEEP_DIR: go on with a sweep.

  dp-fedmed resume checkpoints/my_run                            from its last checkpoint
  dp-fedmed resume checkpoints/my_run resume=round:10            from an older one
  dp-fedmed resume checkpoints/my_run federation.num_rounds=40   with more rounds
  dp-fedmed resume checkpoints/my_run new_phase=true privacy.sample.target_epsilon=5

The settings are those that the run had; overrides change single ones. What the guarantee rests on
(noise, clipping, sampling rates, deltas, budgets) changes only in a new phase, whose cost is added
to what is spent; other data, clients or another model are a new run. What was spent stays spent,
whichever checkpoint is gone on from.

  dp-fedmed resume checkpoints/my_sweep                          what is left of a sweep

Jobs of a sweep that are done stay as they are, those that were cut off are gone on with, and those
that failed are tried again. Only how it computes can change: engine.workers=2, or
hydra.launcher.n_jobs=4 for as many jobs at a time.
"""


def main(arguments: list[str]) -> int:
    """Go on with the run directory that is named first."""
    if not arguments or {"-h", "--help"} & set(arguments):
        print(HELP, end="")
        return 0 if arguments else EXIT_USAGE
    from dp_fedmed.commands.run import federate, with_absolute_data_path
    from dp_fedmed.config import compose
    from dp_fedmed.config.resume import resume_words
    from dp_fedmed.errors import ConfigError
    from dp_fedmed.sweeps.directory import is_sweep

    folder, *overrides = arguments
    if not Path(folder).is_dir():
        raise ConfigError(f"{folder} is not a run directory: for example checkpoints/my_run")
    if is_sweep(Path(folder)):
        return _resume_sweep(Path(folder).resolve(), overrides)
    path = str(Path(folder).resolve()).replace("'", "\\'")
    for word in overrides:
        place = word.removeprefix("resume=")
        if word.startswith("run_dir=") or (place != word and Path(place).is_dir()):
            raise ConfigError(f"{word} names another run directory than {folder}: give one of them")
    chosen = [] if any(word.startswith("resume=") for word in overrides) else ["resume=last"]
    words = resume_words([f"run_dir='{path}'", *chosen, *overrides])
    if not (Path(folder) / "config.yaml").is_file():
        raise ConfigError(f"{folder} holds no run to resume: config.yaml is missing")
    return federate(with_absolute_data_path(compose(words)))


def _resume_sweep(path: Path, overrides: list[str]) -> int:
    """The sweep's own command once more: it does what is left."""
    from dp_fedmed.commands import run
    from dp_fedmed.config.resume import quoted
    from dp_fedmed.errors import ConfigError
    from dp_fedmed.sweeps.directory import ELSEWHERE, read_sweep

    for word in overrides:
        if not word.startswith(ELSEWHERE) or word.startswith("run_dir="):
            raise ConfigError(
                f"{word} would change the sweep at {path}: give none, or only how it computes, for "
                "example hydra.launcher.n_jobs=2"
            )
    words = [word for word in read_sweep(path)["command"][2:] if not word.startswith("run_dir=")]
    return run.main([*words, *overrides, f"run_dir={quoted(str(path))}"])
