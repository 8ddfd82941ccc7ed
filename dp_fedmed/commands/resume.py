"""`dp-fedmed resume`: go on with a run."""

from __future__ import annotations

from pathlib import Path

from dp_fedmed.commands import EXIT_USAGE

HELP = """\
dp-fedmed resume RUN_DIR [overrides]: go on with a run that was stopped, killed or cut off.

  dp-fedmed resume checkpoints/my_run                            from its last checkpoint
  dp-fedmed resume checkpoints/my_run resume=round:10            from an older one
  dp-fedmed resume checkpoints/my_run federation.num_rounds=40   with more rounds
  dp-fedmed resume checkpoints/my_run new_phase=true privacy.sample.target_epsilon=5

The settings are those that the run had; overrides change single ones. What the guarantee rests on
(noise, clipping, sampling rates, deltas, budgets) changes only in a new phase, whose cost is added
to what is spent; other data, clients or another model are a new run. What was spent stays spent,
whichever checkpoint is gone on from.
"""


def main(arguments: list[str]) -> int:
    """Go on with the run directory that is named first."""
    if not arguments or {"-h", "--help"} & set(arguments):
        print(HELP, end="")
        return 0 if arguments else EXIT_USAGE
    from dp_fedmed.commands.run import federate, with_absolute_data_path
    from dp_fedmed.config import ConfigError, compose
    from dp_fedmed.config_resume import resume_words

    folder, *overrides = arguments
    if not Path(folder).is_dir():
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
    return federate(with_absolute_data_path(compose(words)))
