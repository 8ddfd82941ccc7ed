"""What parties tell each other of failures: the kind, never a text, record or path.

A peer may be another program than ours, so what it wrote is cut down before it is shown or logged.
"""

from __future__ import annotations

import re

from dp_fedmed.errors import ConfigError, SiteRefused

MOST_SHOWN, MOST_REFUSED = 200, 1000
_PATH = re.compile(r"""(?:[A-Za-z]:)?(?:[/\\][^\s/\\'"<>:,;()]+){2,}[/\\]?""")


def describe_failure(error: Exception) -> str:
    """A sentence for the other side.

    >>> describe_failure(FileNotFoundError("/home/jane/patients.csv"))
    'FileNotFoundError in the client (details are in its own log)'
    >>> describe_failure(SiteRefused("/mnt/keys has mode 0777", "its state-dir is open to others"))
    'its state-dir is open to others (details are in its own log)'
    """
    what = error.told if isinstance(error, SiteRefused) else f"{type(error).__name__} in the client"
    return f"{what} (details are in its own log)"


def describe_refusal(error: Exception, *, simulated: bool) -> str:
    """Why a client cannot take part, before round 1.

    A simulation has one owner, who is told as it is; between sites, as `describe_failure` does.

    >>> describe_refusal(ConfigError("data.path=/x is missing"), simulated=True)
    'data.path=/x is missing'
    """
    if not simulated:
        return describe_failure(error)
    return str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"


def from_peer(text: object) -> str:
    r"""What a peer wrote as one short line: no control characters, no paths, no forged lines.

    >>> from_peer("lost\x1b[2J\n2026 INFO all is well in /home/jane/patients.csv")
    'lost [2J 2026 INFO all is well in <path>'
    """
    said = one_line(str(text)[: 4 * MOST_SHOWN])
    return _cut(_PATH.sub("<path>", said), MOST_SHOWN)


def one_line(text: object) -> str:
    r"""A text without control characters or forged lines.

    >>> one_line("lost\x1b[2J\nin /home")
    'lost [2J in /home'
    """
    said = str(text)[: 4 * MOST_REFUSED]
    return _cut(
        " ".join("".join(c if c.isprintable() else " " for c in said).split()), MOST_REFUSED
    )


def _cut(line: str, most: int) -> str:
    return line if len(line) <= most else f"{line[: most - 1]}…"
