"""`dp-fedmed audit`: attack the claimed ε of a configuration, with one run of it."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import NoReturn

from dp_fedmed.commands import with_config_dir
from dp_fedmed.errors import EXIT_FINDING

HELP = """\
dp-fedmed audit [overrides] [flags]: attack the ε that a configuration claims.

Two attacks, each through the code that dp-fedmed run uses, for records (privacy=sample), whole
clients (privacy=user), or both (privacy=hybrid):
  one release   your own network and loss (or anomaly.mechanism). The record that moves a step most
                is searched, then the step is released many times with and without it
  whole run     canaries are put into the data by fair coins, and the coins are guessed from what
                the run released; on a stand-in network that has room for thousands of them
The result of each is a lower bound on ε at 95 % confidence, beside the claim.

Takes the overrides of dp-fedmed run. Sigma, q, T, clipping, accountant and delta are theirs:
  dp-fedmed audit privacy=user federation.num_rounds=10 privacy.user.target_epsilon=3
  dp-fedmed audit task=digits privacy=sample privacy.sample.target_epsilon=1
  dp-fedmed audit task=digits privacy=hybrid --canaries-count 1000
  dp-fedmed audit task=textures privacy=sample
  dp-fedmed audit privacy=sample allow_code=[my_package] model._target_=my_package.MyNet
  dp-fedmed audit task=digits privacy=sample --canaries black-box

Flags:
  --trials N            releases of one step (default 1000 to 4000, by the noise multiplier)
  --canaries KIND       white-box (default): both attacks; in a whole run each canary has a weight
                        of its own and ten times the clipping norm, so that only clipping and noise
                        hide it. black-box: records of your data with random labels, seen through
                        the final model's loss
  --canaries-count N    canaries of a run (default 4000; black-box: what the data can give)
  --repeat N            independent runs whose guesses are counted together (default 1)
  --seed N              seed of the coins (default: from the system). Noise never depends on it
  --confidence P        of the bound (default 0.95)
  --output DIR          where audit.json and audit.png go (default: a new folder in checkpoints/)
  --json                print audit.json instead of the table

Verdicts:
  consistent     the bound is below the claim. That is no proof: a better attack may exist
  exceeded       the bound is above the claim, confirmed on new releases: something is broken
  inconclusive   so few canaries could not refute this claim even if every guess were right
  not private    privacy.noise_seed makes the noise public

Exit codes: 0 nothing found, 3 exceeded or not private, 1 stopped, 2 wrong settings.
Small networks take seconds at record level; a user-level audit of 10 rounds under a minute.
"""


class _Parser(argparse.ArgumentParser):
    """Reports mistakes as the other commands do."""

    def error(self, message: str) -> NoReturn:
        from dp_fedmed.errors import ConfigError

        raise ConfigError(f"{message}; see dp-fedmed audit --help")


def main(arguments: list[str]) -> int:
    """Audit what the overrides describe."""
    if {"-h", "--help"} & set(arguments):
        print(HELP, end="")
        return 0
    given = _parser().parse_intermixed_args(with_config_dir(arguments))
    from rich.console import Console

    from dp_fedmed.commands.run import with_absolute_data_path
    from dp_fedmed.config import compose

    _refuse_run_keys(given.overrides)
    config = with_absolute_data_path(compose(given.overrides))
    console = Console(stderr=given.json)
    with console.status("loading PyTorch, Flower and the data"):
        from dp_fedmed.evidence.audit import CanaryKind, Options, audit, planned
        from dp_fedmed.evidence.audit_report import AuditProgress, audit_table, plot_audit
        from dp_fedmed.reporting.run_log import quiet_console

        quiet_console()
        options = Options(
            kind=CanaryKind(given.canaries),
            count=given.canaries_count,
            trials=given.trials,
            repeat=given.repeat,
            seed=given.seed,
            confidence=given.confidence,
        )
        planned(config, options)  # what cannot be audited is refused before a folder is made
    output = _output_folder(given.output, config.run_dir)
    progress = AuditProgress(console)
    with progress.bars:
        found = audit(config, options, progress.watch)
    content = found.to_json()
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
    (output / "audit.json").write_text(f"{text}\n", encoding="utf-8")
    plot_audit(found, output / "audit.png")
    if given.json:
        print(text)
    else:
        console.print(audit_table(found))
        for finding in found.findings:
            console.print(finding.statement, soft_wrap=True, highlight=False, markup=False)
            console.print(f"Took no part: {finding.replaced}.", soft_wrap=True, highlight=False)
        console.print(f"Results: {output}", soft_wrap=True, highlight=False, markup=False)
    return EXIT_FINDING if found.decisive.verdict.is_finding else 0


def _parser() -> _Parser:
    parser = _Parser(prog="dp-fedmed audit", add_help=False)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--canaries", choices=("white-box", "black-box"), default="white-box")
    parser.add_argument("--canaries-count", type=int)
    parser.add_argument("--trials", type=int)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--confidence", type=float, default=0.95)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--json", action="store_true")
    return parser


def _refuse_run_keys(overrides: list[str]) -> None:
    """Keys that say where a run goes, or goes on, mean nothing here."""
    from dp_fedmed.errors import ConfigError

    for word in overrides:
        key = word.split("=")[0].lstrip("+~")
        if key in ("run_dir", "resume", "new_phase", "data_ledger"):
            raise ConfigError(
                f"{word} is for dp-fedmed run: an audit trains on canaries, charges nobody, and "
                "writes to --output DIR"
            )


def _output_folder(given: Path | None, run_dir: str) -> Path:
    """Where the results go; made here, so that a bad place is known before the work."""
    from dp_fedmed.errors import ConfigError

    path = given.absolute() if given is not None else Path(f"{run_dir}_audit")
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise ConfigError(
            f"--output {path} cannot be written: {error.strerror}; give a folder of your own"
        ) from error
    return path
