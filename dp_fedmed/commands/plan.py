"""`dp-fedmed plan`: what a run would spend, and how much noise it takes, without training."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from dp_fedmed.commands.arguments import Arguments
from dp_fedmed.errors import ConfigError

HELP = """\
dp-fedmed plan [overrides] [--fast] [--json] [--plot [FILE.png]] [--records N,N,...]

What a run with these settings would spend, before anything is trained: the noise of each client,
epsilon by round, what the budget allows, who binds, and what to change. Takes the same overrides as
dp-fedmed run, and gives the same noise multipliers as that run.

  dp-fedmed plan privacy=sample                               each record, epsilon 3
  dp-fedmed plan task=digits privacy=sample training.batch_size=64 recipe=none
  dp-fedmed plan task=digits privacy=user federation.num_clients=500
  dp-fedmed plan privacy=hybrid privacy.sample.target_epsilon=2 privacy.user.target_epsilon=6
  dp-fedmed plan privacy=sample privacy.sample.noise_multiplier=1.1   how far a given noise goes
  dp-fedmed plan privacy=sample --records 1200,400,90          three hospitals, and no data here

  --fast       RDP for all clients, more only for the one that binds; the model's weights uncounted
  --json       the plan for programs, and nothing else on standard output
  --plot       a picture of epsilon by round and noise by client; plan.png unless a name follows
  --records    each client's number of training records, instead of those of the data

How to read it: q is a record's chance to be in a step, T the noisy steps (so many per round), sigma
the noise in units of the clipping norm. Sigma is calibrated for privacy.*.target_epsilon by
privacy.accountant (tight, rdp or pld); RDP's epsilon is shown beside. The client that
binds is the one that needs the most noise.
Exit code 2: a setting that cannot be, or a target that no noise reaches.
"""

PICTURE = "plan.png"


def main(arguments: list[str]) -> int:
    """Print, and on request draw, the plan that the overrides describe."""
    asked = _read(arguments)
    from rich.console import Console

    from dp_fedmed.planned import make_plan_of

    with Console(stderr=True).status("planning"):
        made = make_plan_of(asked.overrides, records=asked.records, fast=asked.fast)
        if asked.plot is not None:
            from dp_fedmed.reporting.plan_plot import plot_plan

            plot_plan(made.forecast, asked.plot)
    if asked.json:
        print(json.dumps(made.to_json(), indent=2, ensure_ascii=False))
        return 0
    from dp_fedmed.reporting.plan import print_plan

    print_plan(made, Console())
    if asked.plot is not None:
        print(f"Picture: {asked.plot}")
    return 0


def _read(arguments: list[str]) -> argparse.Namespace:
    """The command's own flags, apart from Hydra's overrides."""
    parser = Arguments(HELP).flag("--fast").flag("--json")
    parser.flag("--plot", nargs="?", const=PICTURE).flag("--records", nargs="?", const="")
    words = list(arguments)
    for at, word in enumerate(words[:-1]):
        if word == "--plot" and "=" in words[at + 1]:  # an override, not the picture's name
            words[at] = f"--plot={PICTURE}"
    given = parser.read(words)
    given.plot = None if given.plot is None else _picture(given.plot or PICTURE)
    given.records = None if given.records is None else _counts(given.records)
    return given


def _picture(name: str) -> Path:
    path = Path(name).expanduser().absolute()
    if path.suffix.lower() != ".png":
        raise ConfigError(f"--plot {name} is not a PNG: for example --plot {PICTURE}")
    if not path.parent.is_dir():
        raise ConfigError(f"--plot {name}: there is no folder {path.parent}")
    return path


def _counts(text: str) -> dict[str, int]:
    """`1200,400,90`, or `100x50` for a hundred clients of fifty records."""
    counts: list[int] = []
    for part in text.split(","):
        times, _, size = part.strip().rpartition("x")
        if not size.isdecimal() or int(size) < 1 or not (times or "1").isdecimal():
            raise ConfigError(
                f"--records {text!r} is not a list of records by client: for example "
                "--records 1200,400,90 or --records 100x50"
            )
        counts += [int(size)] * min(int(times or 1), 10**6)
    return {f"client-{number:05d}": count for number, count in enumerate(counts)}
