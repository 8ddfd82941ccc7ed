"""`run.log`: everything that the project and Flower say while a run lasts."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from dp_fedmed.federation.private_log import cohort_logger

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
LOGGERS = ("dp_fedmed", "flwr")


class _WithoutPaths(logging.Formatter):
    """Formatter that leaves folders out of log lines, since logs are passed on."""

    def __init__(self, run_dir: Path) -> None:
        super().__init__(FORMAT)
        self._hidden = {str(run_dir): "RUN_DIR", str(Path.home()): "~"}

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        for path, shown in self._hidden.items():
            if len(path) > 1:  # a home of / would be in every path
                line = line.replace(path, shown)
        return line


class _Printed(logging.StreamHandler[TextIO]):
    """The handler that `show_on_stdout` adds."""


class _LogFile(logging.FileHandler):
    """Log file that ignores write errors: a full disk must not stop a run through its log."""

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)

    def close(self) -> None:
        with suppress(OSError):
            super().close()


@contextmanager
def log_to(path: Path, run_dir: Path) -> Iterator[None]:
    """Send our own and Flower's log lines to a file as well, until the block ends.

    Args:
        path: of the file, in `private/` where cohorts are secret: lines on who took part go to no
            other place.
        run_dir: the run's, which is left out of lines.
    """
    handler = _LogFile(path, encoding="utf-8")
    handler.setFormatter(_WithoutPaths(run_dir))
    loggers = [*(logging.getLogger(name) for name in LOGGERS), cohort_logger]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)
        handler.close()


def show_on_stdout() -> None:
    """Print our log lines, once each, for Flower's log stream; safe to call twice.

    Opacus gives the root logger a handler when it is imported, and Flower has one of its own.
    """
    ours = logging.getLogger("dp_fedmed")
    for name in LOGGERS:
        logging.getLogger(name).propagate = False
    if not any(type(handler) is _Printed for handler in ours.handlers):
        handler = _Printed(sys.stdout)
        handler.setFormatter(logging.Formatter("%(message)s"))
        ours.addHandler(handler)
        ours.setLevel(logging.INFO)


def quiet_console() -> None:
    """Keep the console for the display: warnings of ours pass, Flower's chatter does not."""
    logging.getLogger("dp_fedmed").propagate = False  # libraries give the root logger handlers
    flower = logging.getLogger("flwr")
    for handler in list(flower.handlers):
        handler.setLevel(logging.CRITICAL)
