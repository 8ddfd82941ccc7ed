"""Log lines that stay in `private/`: who took part, and how simulated clients failed.

Amplification by secret cohorts rests on nobody seeing these, whoever set up logging.
"""

from __future__ import annotations

import logging
import os
import time
import traceback
from contextlib import suppress
from pathlib import Path

CLIENTS_LOG = "clients.log"


def _apart(name: str) -> logging.Logger:
    """A logger outside Python's tree: no parent to pass lines to, unknown to any configuration."""
    logger = logging.Logger(name, logging.INFO)
    logger.addHandler(logging.NullHandler())  # without any, warnings would go to stderr
    return logger


cohort_logger = _apart("dp_fedmed.private")


def keep_failure(run_dir: str | Path, name: str, verb: str) -> None:
    """Write the current exception to `private/clients.log`, which quotes records and paths.

    A simulated client may be in a process or on a machine of its own; where it cannot see the run's
    folder, nothing is written, since every stream that it has ends at the user.
    """
    line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {name} could not {verb}\n{traceback.format_exc()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    with (
        suppress(OSError),
        os.fdopen(os.open(Path(run_dir) / "private" / CLIENTS_LOG, flags, 0o600), "a") as file,
    ):
        file.write(line)
