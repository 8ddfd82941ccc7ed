"""What one party may tell another of its failure: the kind, never a text, record or path."""

from __future__ import annotations


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
