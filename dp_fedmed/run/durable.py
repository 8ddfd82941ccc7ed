"""Makes many files durable, deletes them, and allows one process per run directory."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dp_fedmed.errors import RunLocked

LOCK_FILE = ".lock"


def sync_all(paths: Iterable[Path]) -> None:
    """Make files and folders durable, all at once: a disk takes as long for many as for one."""

    def sync(path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    todo = list(paths)
    with ThreadPoolExecutor(max(1, len(todo))) as pool:
        list(pool.map(sync, todo))


_sweeps: list[threading.Thread] = []


def sweep(paths: Iterable[Path]) -> None:
    """Delete files and folders in the background: some disks take as long for that as to write."""

    def delete(todo: list[Path]) -> None:
        for path in todo:
            with contextlib.suppress(OSError):
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    todo = list(paths)
    if todo:
        _sweeps.append(threading.Thread(target=delete, args=(todo,)))
        _sweeps[-1].start()


def wait_for_sweeps() -> None:
    """Return when everything that was to be deleted is."""
    while _sweeps:
        _sweeps.pop().join()


class RunLock:
    """Held by the one process that works on a run directory.

    A record lock: it ends with the process, and workers forked from it do not keep it.

    Raises:
        RunLocked: if another process, or another run of this one, holds it.
    """

    _held: set[Path] = set()  # noqa: RUF012  # record locks do not keep a process from itself

    def __init__(self, folder: Path) -> None:
        self.path = (folder / LOCK_FILE).resolve()
        refused = RunLocked(
            f"run_dir={folder} is in use by another process ({LOCK_FILE} is locked): wait for it, "
            "or stop it"
        )
        if self.path in self._held:
            raise refused
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._descriptor)
            raise refused from None
        self._held.add(self.path)

    def release(self) -> None:
        """Let others in; safe to call twice."""
        if self.path in self._held:
            self._held.discard(self.path)
            os.close(self._descriptor)
