"""`dp-fedmed audit`: attack the claimed ε of a configuration, with one run of it."""

from __future__ import annotations

import json
from pathlib import Path

from dp_fedmed.commands.arguments import Arguments, config_of, output_directory
from dp_fedmed.errors import EXIT_FINDING, ConfigError

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


def main(arguments: list[str]) -> int:
    """Audit what the overrides describe."""
    given = _parser().read(arguments)
    from rich.console import Console

    _refuse_run_keys(given.overrides)
    config = config_of(given.overrides)
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
    place = given.output.absolute() if given.output else Path(f"{config.run_dir}_audit")
    output = output_directory(place, "--output")
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


def _parser() -> Arguments:
    parser = Arguments(HELP)
    parser.flag("--canaries", choices=("white-box", "black-box"), default="white-box")
    parser.flag("--canaries-count", type=int).flag("--trials", type=int)
    parser.flag("--repeat", type=int, default=1).flag("--seed", type=int)
    parser.flag("--confidence", type=float, default=0.95)
    return parser.flag("--output", type=Path).flag("--json")


def _refuse_run_keys(overrides: list[str]) -> None:
    """Refuses keys that say where a run is written or resumed."""
    for word in overrides:
        key = word.split("=")[0].lstrip("+~")
        if key in ("run_dir", "resume", "new_phase", "data_ledger"):
            raise ConfigError(
                f"{word} is for dp-fedmed run: an audit trains on canaries, charges nobody, and "
                "writes to --output DIR"
            )
