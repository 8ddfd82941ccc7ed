"""Files that are whole or not there, also after `kill -9` or a power cut."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from dp_fedmed.privacy.streams.keys import TEMPORARY, sync_folder


def write_file(target: Path, content: bytes, *, mode: int = 0o644, durable: bool = True) -> None:
    """Write a file whole or not at all: temporary name, fsync, rename, fsync of the folder.

    Without `durable` a power cut may bring an older version back, never half of one.
    """
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=TEMPORARY)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(target.parent)
