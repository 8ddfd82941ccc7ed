"""`dp-fedmed`: the command line. Heavy imports happen where a command needs them."""

from __future__ import annotations

import atexit
import contextlib
import difflib
import os
import sys
import threading
from collections.abc import Sequence
from importlib import import_module

from dp_fedmed.commands import EXIT_INTERRUPTED, EXIT_STOPPED, EXIT_USAGE

HELP = """\
dp-fedmed: differentially private federated learning for medicine.

Usage: dp-fedmed COMMAND [arguments]

Commands:
  plan         what a run would spend, untrained       dp-fedmed plan privacy=sample
  run          train a federation, or sweep over many  dp-fedmed run task=digits
  resume       go on with a run or a sweep             dp-fedmed resume checkpoints/my_run
  report       one page about a run or a sweep         dp-fedmed report checkpoints/my_run
  ledger       what a run has spent, checked           dp-fedmed ledger verify checkpoints/my_run
  audit        attack the claimed ε of settings        dp-fedmed audit privacy=user
  attack       ask a model who was in its data         dp-fedmed attack checkpoints/my_run
  reconstruct  what a curious server would see         dp-fedmed reconstruct task=digits
  data         who would hold which records            dp-fedmed data data.partition.name=dirichlet

dp-fedmed run --help      groups, keys and examples
dp-fedmed run --cfg job   every setting with the value it would have
dp-fedmed --version       the installed version

A run writes one directory: config.yaml, metrics.jsonl, model.safetensors, privacy_report.json,
metrics.png, partition.png, run.log, round_NNNN/ to go on from, and private/. Its place is printed
at the end, and is yours to choose with run_dir=/absolute/path.
"""

COMMANDS = (
    *("plan", "run", "resume", "report", "ledger"),
    *("audit", "attack", "reconstruct", "data"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Returns:
        0 (well), 1 (stopped early), 2 (wrong settings), 3 (a claim does not hold) or 130 (Ctrl-C).
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0
    if given[0] in ("-V", "--version"):
        from dp_fedmed import __version__

        print(f"dp-fedmed {__version__}")
        return 0
    if given[0] not in COMMANDS:
        near = difflib.get_close_matches(given[0], COMMANDS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        print(f"dp-fedmed: no command {given[0]!r}{hint} See dp-fedmed --help", file=sys.stderr)
        return EXIT_USAGE
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    from dp_fedmed.config import ConfigError

    try:
        return int(import_module(f"dp_fedmed.commands.{given[0]}").main(given[1:]))
    except ConfigError as error:
        print(f"dp-fedmed: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:
        if not is_refusal(error):
            raise
        print(f"dp-fedmed: {error}", file=sys.stderr)
        return EXIT_STOPPED


def is_refusal(error: Exception) -> bool:
    """Whether an error's message is a sentence for the user."""
    from dp_fedmed.federation.checkpoint import CheckpointError
    from dp_fedmed.federation.durable import RunLocked
    from dp_fedmed.privacy.ledger import LedgerError

    known = isinstance(error, CheckpointError | RunLocked | LedgerError)
    return known or (isinstance(error, OSError) and error.filename is not None)


def entry() -> None:
    """The console script."""
    _leave(main())


def _leave(code: int) -> None:
    """End the process without Python's last look for garbage, which takes a second with torch."""
    if any(t for t in threading.enumerate() if t is not threading.main_thread() and not t.daemon):
        sys.exit(code)
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
