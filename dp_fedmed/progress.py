"""Long work within a round tells how far it is; a display that is open shows it.

Without a display, and in worker processes, which have no terminal of their own, nobody listens.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator

#: Called with what is done, how much of it, and how much there is.
Listener = Callable[[str, int, int], None]
#: Seconds after which work counts as long.
PATIENCE = 2.0

_listening: list[tuple[int, Listener]] = []


@contextlib.contextmanager
def listened_by(listener: Listener) -> Iterator[None]:
    """While this is open, the listener hears of long work in this process."""
    entry = (os.getpid(), listener)
    _listening.append(entry)
    try:
        yield
    finally:
        _listening.remove(entry)


def telling(what: str, *, patience: float = PATIENCE) -> Callable[[int, int], None]:
    """What work calls with (done, total): silent at first, and where nobody listens.

    >>> heard = []
    >>> with listened_by(lambda *news: heard.append(news)):
    ...     tell = telling("choosing patches", patience=0.0)
    ...     tell(1, 2); tell(2, 2)
    >>> heard
    [('choosing patches', 1, 2), ('choosing patches', 2, 2)]
    """
    started, is_told = time.monotonic(), False

    def tell(done: int, total: int) -> None:
        nonlocal is_told
        is_told = is_told or time.monotonic() - started >= patience
        if is_told and _listening and _listening[-1][0] == os.getpid():
            _listening[-1][1](what, done, total)

    return tell
