"""`dp-fedmed plan`: what a run would spend, and how much noise it takes, without training."""

from __future__ import annotations

import difflib
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dp_fedmed.commands import with_config_dir

if TYPE_CHECKING:
    from dp_fedmed.config import Config
    from dp_fedmed.data import DataSet
    from dp_fedmed.planning.plan import PrivacyPlan
    from dp_fedmed.reporting.plan import Plan

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

How to read it: q is a record's chance to be in a step, T the noisy steps (so many a round), sigma
the noise in units of the clipping norm. Sigma is calibrated for privacy.*.target_epsilon by
privacy.accountant (tight, rdp or pld); RDP's epsilon is shown beside. The client that
binds is the one that needs the most noise.
Exit code 2: a setting that cannot be, or a target that no noise reaches.
"""

FLAGS = ("--fast", "--json", "--plot", "--records", "--config-dir", "--help", "-h")
PICTURE = "plan.png"


@dataclass
class _Asked:
    """The command's own words, apart from Hydra's."""

    fast: bool = False
    as_json: bool = False
    picture: Path | None = None
    records: dict[str, int] | None = None
    overrides: list[str] = field(default_factory=list)


def main(arguments: list[str]) -> int:
    """Print, and on request draw, the plan that the overrides describe."""
    if {"-h", "--help"} & set(arguments):
        print(HELP, end="")
        return 0
    asked = _parsed(arguments)
    from rich.console import Console

    with _without_warnings(), Console(stderr=True).status("planning"):
        made = _make(asked)
        if asked.picture is not None:
            _draw(made, asked.picture)
    if asked.as_json:
        print(json.dumps(made.to_json(), indent=2, ensure_ascii=False))
        return 0
    from dp_fedmed.reporting.plan import print_plan

    print_plan(made, Console())
    if asked.picture is not None:
        print(f"Picture: {asked.picture}")
    return 0


@contextmanager
def _without_warnings() -> Iterator[None]:
    """What make_plan would log stands among the plan's own warnings."""
    logger = logging.getLogger("dp_fedmed.planning.plan")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _parsed(arguments: list[str]) -> _Asked:
    """Our flags and Hydra's overrides.

    Raises:
        ConfigError: for a flag that is not ours, with the nearest one.
    """
    from dp_fedmed.errors import ConfigError

    asked, words = _Asked(), with_config_dir(arguments)
    while words:
        word = words.pop(0)
        flag, equals, value = word.partition("=")
        if not word.startswith("-"):
            asked.overrides.append(word)
            continue
        if flag in ("--fast", "--json") and not equals:
            setattr(asked, {"--fast": "fast", "--json": "as_json"}[flag], True)
        elif flag == "--plot":
            if not equals and words and not words[0].startswith("-") and "=" not in words[0]:
                value = words.pop(0)
            asked.picture = _picture(value or PICTURE)
        elif flag == "--records":
            asked.records = _counts(value if equals else words.pop(0) if words else "")
        else:
            near = difflib.get_close_matches(flag, FLAGS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"its flags are {', '.join(FLAGS[:-1])}"
            raise ConfigError(f"plan has no flag {word}; {hint}")
    return asked


def _picture(name: str) -> Path:
    from dp_fedmed.errors import ConfigError

    path = Path(name).expanduser().absolute()
    if path.suffix.lower() != ".png":
        raise ConfigError(f"--plot {name} is not a PNG: for example --plot {PICTURE}")
    if not path.parent.is_dir():
        raise ConfigError(f"--plot {name}: there is no folder {path.parent}")
    return path


def _counts(text: str) -> dict[str, int]:
    """`1200,400,90`, or `100x50` for a hundred clients of fifty records."""
    from dp_fedmed.errors import ConfigError

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


def _make(asked: _Asked) -> Plan:
    from dp_fedmed.commands.run import with_absolute_data_path
    from dp_fedmed.config import TaskKind, compose
    from dp_fedmed.errors import ConfigError
    from dp_fedmed.planning.forecast import count_weights, forecast, simulated_records
    from dp_fedmed.planning.suggestions import suggestions
    from dp_fedmed.reporting.plan import Plan
    from dp_fedmed.reporting.shared_data import shared_spending

    for word in asked.overrides:
        if word.lstrip("+~").split("=")[0] in ("resume", "new_phase"):
            raise ConfigError(f"{word}: a plan is for a new run; leave resume and new_phase out")
        if _is_sweep(word):
            raise ConfigError(f"{word} names several values: a plan is for one run; give one")
    overrides = list(asked.overrides)
    if asked.records is not None:
        given = [word for word in overrides if word.startswith("federation.num_clients=")]
        wanted = f"federation.num_clients={len(asked.records)}"
        if any(word != wanted for word in given):
            raise ConfigError(f"{given[0]} contradicts --records, which names {len(asked.records)}")
        overrides += [] if given else [wanted]
    config = with_absolute_data_path(compose(overrides))
    data = None if asked.records is not None else _data(config)
    records = asked.records if data is None else simulated_records(config, data)
    made = forecast(config, records or {}, fast=asked.fast)
    weights = advice = None
    if data is not None and made.plan is not None and not asked.fast:  # these import torch
        if config.task.kind is TaskKind.anomaly:
            advice = _advice(config, data, made.plan)
        else:
            weights = count_weights(config, data)
            advice = _refusal(config, data)
    return Plan(
        forecast=made,
        fast=asked.fast,
        weights=weights,
        advice=advice,
        suggestions=tuple(suggestions(made, fast=asked.fast)),
        shared=shared_spending(config, made),
    )


def _is_sweep(word: str) -> bool:
    """Whether Hydra would make several runs of an override."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        return OverridesParser.create().parse_override(word).is_sweep_override()
    except HydraException:
        return False  # it says what is wrong when it composes


def _data(config: Config) -> DataSet:
    from dp_fedmed.data import load_data
    from dp_fedmed.data.registry import refuse_other_kind

    data = load_data(config.data, seed=config.seed)
    refuse_other_kind(config, data)
    return data


def _advice(config: Config, data: DataSet, plan: PrivacyPlan) -> str | None:
    """What an anomaly task says about how many images or clients it needs."""
    import torch

    from dp_fedmed.federation.sampling import make_sampler
    from dp_fedmed.learning import make_learner

    torch.set_num_threads(1)  # for so little work, threads wait for each other
    return make_learner(config, data).advice(plan, make_sampler(config.federation))


def _refusal(config: Config, data: DataSet) -> str | None:
    """Why a run would refuse the network; None if it would not."""
    if not config.privacy.style.protects_records:
        return None
    import torch

    from dp_fedmed.errors import ConfigError
    from dp_fedmed.learning import make_learner

    torch.set_num_threads(1)
    learner = make_learner(config, data)
    try:
        learner.settled(config)
    except ConfigError as error:
        return f"a run would be refused: {error}"
    return None


def _draw(made: Plan, path: Path) -> None:
    from dp_fedmed.reporting.plan_plot import plot_plan

    plot_plan(made.forecast, path)
