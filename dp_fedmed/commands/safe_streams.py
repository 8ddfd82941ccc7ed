"""Makes standard output and error safe: a failed write loses text, never a run or its exit code.

Readers may close the pipe (`| head -1`), be full (`> /dev/full`) or accept ASCII only.
"""

from __future__ import annotations

import codecs
import io
import os
import sys

_WORDS = (
    *("ε epsilon", "δ delta", "σ sigma", "α alpha", "λ lambda", "Σ sum", "∞ inf", "± +/-", "× x"),
    *("· -", "– -", "− -", "— -", "… ...", "→ ->", "• *", "≤ <=", "≥ >=", "² ^2", "’ '"),
)
_SPELLED = str.maketrans(dict(word.split(" ") for word in _WORDS))
_SPELL = "dp_fedmed.spell"


def spelled(error: UnicodeError) -> tuple[str, int]:
    """Codec error handler: spells characters that a stream cannot encode.

    >>> codecs.register_error("doc", spelled)
    >>> "ε = 3 ± 1".encode("ascii", errors="doc")
    b'epsilon = 3 +/- 1'
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(_SPELLED)
    return text.encode(error.encoding, "replace").decode(error.encoding), error.end


class _Lossy(io.FileIO):
    """A descriptor whose writes always succeed; `lost` says why the first one did not."""

    lost: OSError | None = None

    def write(self, data: bytes | bytearray | memoryview) -> int:  # type: ignore[override]
        if self.lost is None:
            try:
                return super().write(data) or 0
            except BlockingIOError:
                raise
            except OSError as error:
                self.lost = error
        return memoryview(data).nbytes


def protect() -> None:
    """Replaces this process's streams by safe ones; call it before anything else is opened."""
    codecs.register_error(_SPELL, spelled)
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass  # a closed stream's number must not become that of a run's file
    os.close(descriptor)
    sys.stdout = sys.__stdout__ = _protected(1, sys.stdout)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _protected(2, sys.stderr)  # type: ignore[misc]


def _protected(descriptor: int, stream: object) -> io.TextIOWrapper:
    raw = _Lossy(descriptor, "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw),  # type: ignore[type-var]
        encoding=getattr(stream, "encoding", None) or "utf-8",
        errors=_SPELL,
        line_buffering=raw.isatty() or descriptor == 2,
        write_through=bool(getattr(stream, "write_through", False)),
    )


def lost(stream: object) -> OSError | None:
    """The error that made a stream lose text; None if it lost none."""
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    return raw.lost if isinstance(raw, _Lossy) else None
