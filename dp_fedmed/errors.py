"""Every error that is meant for a person: each knows its sentence and the exit code of a command.

Anything else that is raised is a bug, and ends in a traceback.
"""

from __future__ import annotations

from pathlib import Path

EXIT_STOPPED, EXIT_USAGE, EXIT_FINDING, EXIT_LOST, EXIT_INTERRUPTED = 1, 2, 3, 4, 130


class DPFedMedError(Exception):
    """What a person can do something about."""

    exit_code = EXIT_STOPPED

    def sentence(self) -> str:
        """The message for the person at this terminal."""
        return str(self)


class ConfigError(DPFedMedError, ValueError):
    """A setting that cannot be right; it names the key, the value and a value that works.

    Attributes:
        path: of which the message shows the last part only, since other parties may read it.
    """

    exit_code = EXIT_USAGE
    path: str | None = None

    def sentence(self) -> str:
        """The message with whole paths, which are those of the person at this terminal.

        >>> error = ConfigError("data.path=scans is not a folder")
        >>> error.path = "/home/ann/scans"
        >>> error.sentence()
        'data.path=/home/ann/scans is not a folder'
        """
        said = str(self)
        if not self.path or self.path in said:
            return said
        shortened = f"={Path(self.path).name}"
        if shortened in said:
            return said.replace(shortened, f"={self.path}", 1)
        return f"{said} ({self.path})"


class NodeError(ConfigError):
    """The federation's nodes are not what the configuration says."""


class SiteRefused(ConfigError):
    """A site cannot take part, for a reason that holds in every round.

    Args:
        message: for whoever runs the site.
        told: the reason as the server may know it: no record, path or number of the site's.
    """

    def __init__(self, message: str, told: str) -> None:
        super().__init__(message)
        self.told = told


class ArrayError(DPFedMedError, ValueError):
    """Arrays that do not fit the model; the message names the array."""


class LedgerError(DPFedMedError, RuntimeError):
    """A ledger that cannot be trusted; the message names the file and what is wrong."""


class CheckpointError(DPFedMedError, RuntimeError):
    """A checkpoint that cannot be continued from; the message names the file."""


class RunLocked(DPFedMedError, RuntimeError):
    """Another process works on this run directory."""


class RunFinished(DPFedMedError, RuntimeError):
    """There is nothing left to do; the message says how to continue all the same."""

    exit_code = 0


class Interrupted(DPFedMedError, RuntimeError):
    """The user asked the run to stop, and its round is over."""

    exit_code = EXIT_INTERRUPTED


class BudgetSpent(DPFedMedError, RuntimeError):
    """The next round does not fit into a budget."""


class BudgetRefused(DPFedMedError, RuntimeError):
    """The server asks for more than this client's own budget allows."""


class ServerRefused(DPFedMedError, RuntimeError):
    """The server asks for something that a server in good order would not."""


class TooFewClients(DPFedMedError, RuntimeError):
    """A round ended with fewer usable replies than `federation.min_clients`."""


class SecureAggregationError(DPFedMedError, RuntimeError):
    """An attempt at secure aggregation that cannot go on."""


class MaskingRefused(SecureAggregationError):
    """A party was sent something that secure aggregation does not allow; it names no secret."""


class NotUnmasked(SecureAggregationError):
    """Too few clients are left for the sum of an attempt to be unmasked."""


class EngineLost(DPFedMedError, RuntimeError):
    """A worker of the engine is gone, and the engine does not replace it."""


class AuditStopped(DPFedMedError, RuntimeError):
    """The run that was to be audited did not come to its end."""


def sentence_of(error: BaseException) -> str | None:
    """What to tell a person about an error; None for one that is a bug.

    >>> sentence_of(LedgerError("ledger.jsonl was changed"))
    'ledger.jsonl was changed'
    >>> sentence_of(KeyError("w")) is None
    True
    """
    if isinstance(error, DPFedMedError):
        return error.sentence()
    if isinstance(error, OSError) and error.filename is not None:  # a file that the user named
        return str(error)
    return None
