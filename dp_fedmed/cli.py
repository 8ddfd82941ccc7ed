"""`dp-fedmed`: the command line. Heavy imports happen where a command needs them."""

from __future__ import annotations

import atexit
import contextlib
import difflib
import errno
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from importlib import import_module

from dp_fedmed.commands import COMMANDS
from dp_fedmed.commands import safe_streams as streams
from dp_fedmed.errors import EXIT_INTERRUPTED, EXIT_STOPPED, EXIT_USAGE, sentence_of

HELP = """\
dp-fedmed: differentially private federated learning for medicine.

Usage: dp-fedmed COMMAND [arguments]

Commands:
  plan         what a run would spend, untrained       dp-fedmed plan privacy=sample
  run          train a federation, or sweep over many  dp-fedmed run task=digits
  resume       resume a run or a sweep                 dp-fedmed resume checkpoints/my_run
  report       one page about a run or a sweep         dp-fedmed report checkpoints/my_run
  ledger       what a run has spent, checked           dp-fedmed ledger verify checkpoints/my_run
  audit        attack the claimed ε of settings        dp-fedmed audit privacy=user
  attack       ask a model who was in its data         dp-fedmed attack checkpoints/my_run
  reconstruct  what a curious server would see         dp-fedmed reconstruct task=digits
  data         who would train on which records        dp-fedmed data data.partition.name=dirichlet

dp-fedmed run --help      groups, keys and examples
dp-fedmed run --cfg job   every setting with the value it would have
dp-fedmed --version       the installed version
dp-fedmed --shell-completion install=bash   words for the shell to complete, with eval

A run writes one directory: config.yaml, metrics.jsonl, model.safetensors, privacy_report.json,
metrics.png, partition.png, run.log, round_NNNN/ to resume from, and private/. Its place is printed
at the end, and is yours to choose with run_dir=/absolute/path.

Exit codes: 0 well, 1 stopped early, 2 wrong settings or a site that cannot take part, 3 a claim
does not hold, 4 complete but a client contributed to no round (never where cohorts are secret:
private/participation.json has it), 130 Ctrl-C.
"""

MEANT = {"train": "run", "fit": "run", "version": "--version"}  # names in other tools


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Returns:
        0 (well), 1 (stopped early), 2 (wrong settings), 3 (a claim does not hold), 4 (complete, but
        a client contributed to no round) or 130 (Ctrl-C or SIGTERM).
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0
    if given[0] in ("-V", "--version"):
        from dp_fedmed.version import __version__

        print(f"dp-fedmed {__version__}")
        return 0
    if given[0] in ("-sc", "--shell-completion"):
        from dp_fedmed.commands.completion import complete

        return _answered(lambda: complete(given[1:], COMMANDS))
    if given[0] not in COMMANDS:
        near = [MEANT[given[0]]] if given[0] in MEANT else []
        near += difflib.get_close_matches(given[0], COMMANDS, n=1)
        hint = f"did you mean {near[0]}?" if near else "see dp-fedmed --help"
        if given[0] == "predict":
            hint = "predictions are not offered yet; model.safetensors holds the weights"
        print(f"dp-fedmed: there is no command {given[0]!r}; {hint}", file=sys.stderr)
        return EXIT_USAGE
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    return _answered(lambda: _run_command(given[0], given[1:]))


def _run_command(name: str, words: list[str]) -> int:
    command = import_module(f"dp_fedmed.commands.{name}")
    if {"-h", "--help"} & set(words) and hasattr(command, "HELP"):  # `run` has Hydra's
        print(command.HELP, end="")
        return 0
    return int(command.main(words))


def _answered(command: Callable[[], int]) -> int:
    """A command's exit code; an error that is meant for a person is printed as one sentence."""
    try:
        return command()
    except KeyboardInterrupt:
        print("dp-fedmed: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except SystemExit as ended:  # Hydra's way to end after its help
        return ended.code if isinstance(ended.code, int) else EXIT_STOPPED
    except Exception as error:
        said = sentence_of(error)
        if said is None:
            raise
        print(f"dp-fedmed: {said}", file=sys.stderr)
        return getattr(error, "exit_code", EXIT_STOPPED)


def entry() -> None:
    """The console script: SIGTERM acts as Ctrl-C, and a failed write to a stream ends no run."""
    streams.protect()
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    arguments = sys.argv[1:]  # Hydra is given its own
    code = main(arguments)
    sys.stdout.flush()
    reason = streams.lost(sys.stdout)
    if reason is not None and reason.errno != errno.EPIPE:
        print(f"dp-fedmed: standard output was lost: {reason.strerror}", file=sys.stderr)
        if code == 0 and arguments[:1] not in (["run"], ["resume"]):  # these have a directory
            code = EXIT_STOPPED
    _leave(code)


def _leave(code: int) -> None:
    """Ends the process without a final garbage collection, which takes a second with torch."""
    if any(t for t in threading.enumerate() if t is not threading.main_thread() and not t.daemon):
        sys.exit(code)
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
