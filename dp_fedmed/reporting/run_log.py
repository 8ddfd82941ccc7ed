"""`run.log`: everything that the project and Flower say while a run lasts."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
LOGGERS = ("dp_fedmed", "flwr")


class _LogFile(logging.FileHandler):
    """A log that a full disk silences, rather than the run it is about."""

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)

    def close(self) -> None:
        with suppress(OSError):
            super().close()


@contextmanager
def log_to(path: Path) -> Iterator[None]:
    """Send our own and Flower's log lines to a file as well, until the block ends."""
    handler = _LogFile(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter(FORMAT))
    loggers = [logging.getLogger(name) for name in LOGGERS]
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
    """Print our log lines, for Flower's log stream; safe to call twice."""
    ours = logging.getLogger("dp_fedmed")
    if not ours.handlers:
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(logging.Formatter("%(message)s"))
        handler.addFilter(lambda record: record.name != "dp_fedmed.private")
        ours.addHandler(handler)
        ours.setLevel(logging.INFO)


def quiet_console() -> None:
    """Keep the console for the display: warnings of ours pass, Flower's chatter does not."""
    logging.getLogger("dp_fedmed").propagate = False  # libraries give the root logger handlers
    flower = logging.getLogger("flwr")
    for handler in list(flower.handlers):
        handler.setLevel(logging.CRITICAL)
