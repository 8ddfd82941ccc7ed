"""`run.log`: everything that the project and Flower say while a run lasts.

What a client says of its own failure may quote records and paths: it goes to a file of its own.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
LOGGERS = ("dp_fedmed", "flwr")
CLIENT_LOGGER = "dp_fedmed.client_app"


class _WithoutPaths(logging.Formatter):
    """Log lines in which nobody's folders are told: a log is sent around."""

    def __init__(self, run_dir: Path) -> None:
        super().__init__(FORMAT)
        self._hidden = {str(run_dir): "RUN_DIR", str(Path.home()): "~"}

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        for path, shown in self._hidden.items():
            if len(path) > 1:  # a home of / would be in every path
                line = line.replace(path, shown)
        return line


class _LogFile(logging.FileHandler):
    """A log that a full disk silences, rather than the run it is about."""

    def __init__(self, path: Path, *, secret: bool = False) -> None:
        self._mode = 0o600 if secret else 0o644
        super().__init__(path, encoding="utf-8", delay=secret)
        self.setFormatter(logging.Formatter(FORMAT))

    def _open(self) -> TextIOWrapper:
        return open(  # type: ignore[return-value]
            self.baseFilename,
            self.mode,
            encoding=self.encoding,
            opener=lambda path, flags: os.open(path, flags, self._mode),
        )

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)

    def close(self) -> None:
        with suppress(OSError):
            super().close()


@contextmanager
def log_to(path: Path, clients: Path) -> Iterator[None]:
    """Send our own and Flower's log lines to a file as well, until the block ends.

    Args:
        path: of what the server says.
        clients: of what simulated clients say; made when the first one does.
    """
    handler, own = _LogFile(path), _LogFile(clients, secret=True)
    handler.setFormatter(_WithoutPaths(clients.parent.parent))
    handler.addFilter(lambda record: record.name != CLIENT_LOGGER)
    own.addFilter(lambda record: record.name == CLIENT_LOGGER)
    loggers = [logging.getLogger(name) for name in LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.addHandler(own)
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.removeHandler(handler)
            logger.removeHandler(own)
            logger.setLevel(level)
        handler.close()
        own.close()


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
