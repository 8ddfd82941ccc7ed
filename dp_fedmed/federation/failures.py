"""What parties tell each other of failures: the kind, never a text, record or path.

A peer may be another program than ours, so what it wrote is cut down before it is shown or logged.
"""

from __future__ import annotations

import re

MOST_SHOWN = 200
_PATH = re.compile(r"""(?:[A-Za-z]:)?(?:[/\\][^\s/\\'"<>:,;()]+){2,}[/\\]?""")


class ClientFailed(RuntimeError):
    """A client's work failed; its message is fit to be sent."""


def describe_failure(error: Exception) -> str:
    """A sentence for the other side.

    >>> describe_failure(FileNotFoundError("/home/jane/patients.csv"))
    'FileNotFoundError in the client (details are in its own log)'
    """
    if isinstance(error, ClientFailed):
        return str(error)
    return f"{type(error).__name__} in the client (details are in its own log)"


def from_peer(text: object) -> str:
    r"""What a peer wrote as one short line: no control characters, no paths, no forged lines.

    >>> from_peer("lost\x1b[2J\n2026 INFO all is well in /home/jane/patients.csv")
    'lost [2J 2026 INFO all is well in <path>'
    """
    said = str(text)[: 4 * MOST_SHOWN]
    line = " ".join("".join(c if c.isprintable() else " " for c in said).split())
    line = _PATH.sub("<path>", line)
    return line if len(line) <= MOST_SHOWN else f"{line[: MOST_SHOWN - 1]}…"
