"""`dp-fedmed resume`: resume a run or a sweep."""

from __future__ import annotations

from pathlib import Path

from dp_fedmed.commands.arguments import Arguments, config_of, existing_directory
from dp_fedmed.errors import ConfigError

HELP = """\
dp-fedmed resume RUN_DIR [overrides]: resume a run that was stopped, killed or cut off.
dp-fedmed resume SWEEP_DIR: resume a sweep.

  dp-fedmed resume checkpoints/my_run                            from its last checkpoint
  dp-fedmed resume checkpoints/my_run resume=round:10            from an older one
  dp-fedmed resume checkpoints/my_run federation.num_rounds=40   with more rounds
  dp-fedmed resume checkpoints/my_run new_phase=true privacy.sample.target_epsilon=5

The settings are those that the run had; overrides change single ones. What the guarantee rests on
(noise, clipping, sampling rates, deltas, budgets) changes only in a new phase, whose cost is added
to what is spent; other data, clients or another model are a new run. What was spent stays spent,
whichever checkpoint is resumed.

  dp-fedmed resume checkpoints/my_sweep                          what is left of a sweep

Jobs of a sweep that are done stay as they are, those that were cut off are resumed, and those that
failed are tried again. Only how it computes can change: engine.workers=2, or
hydra.launcher.n_jobs=4 for as many jobs at a time.
"""


def main(arguments: list[str]) -> int:
    """Resume the run or sweep whose directory is named first."""
    given = Arguments(HELP, directory="RUN_DIR").read(arguments)
    path, overrides = existing_directory(given.directory), given.overrides
    from dp_fedmed.commands.run import federate
    from dp_fedmed.config.resume import quoted, resume_words
    from dp_fedmed.sweeps.directory import is_sweep

    if is_sweep(path):
        return _resume_sweep(path, overrides)
    for word in overrides:
        place = word.removeprefix("resume=")
        if word.startswith("run_dir=") or (place != word and Path(place).is_dir()):
            raise ConfigError(
                f"{word} names another run directory than {given.directory}: give one of them"
            )
    if not (path / "config.yaml").is_file():
        raise ConfigError(f"{given.directory} holds no run to resume: config.yaml is missing")
    chosen = [] if any(word.startswith("resume=") for word in overrides) else ["resume=last"]
    return federate(config_of(resume_words([f"run_dir={quoted(str(path))}", *chosen, *overrides])))


def _resume_sweep(path: Path, overrides: list[str]) -> int:
    """Runs the stored command of the sweep again, which does what is left."""
    from dp_fedmed.commands import run
    from dp_fedmed.config.resume import quoted
    from dp_fedmed.sweeps.directory import ELSEWHERE, read_sweep

    for word in overrides:
        if not word.startswith(ELSEWHERE) or word.startswith("run_dir="):
            raise ConfigError(
                f"{word} would change the sweep at {path}: give none, or only how it computes, for "
                "example hydra.launcher.n_jobs=2"
            )
    words = [word for word in read_sweep(path)["command"][2:] if not word.startswith("run_dir=")]
    return run.main([*words, *overrides, f"run_dir={quoted(str(path))}"])
