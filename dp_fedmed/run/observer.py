"""Who watches a run: shows its rounds, and draws what people would rather look at than read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from dp_fedmed.config import Config
    from dp_fedmed.data import DataSet
    from dp_fedmed.federation.rounds import RoundRecord
    from dp_fedmed.learning import Pictures
    from dp_fedmed.privacy.ledger import Head
    from dp_fedmed.run.directory import RunDirectory
    from dp_fedmed.run.results import RunResult


class Observer:
    """Watches a run, and changes nothing in it; this one without a word."""

    def __enter__(self) -> Self:
        """Training begins."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Training is over, well or not."""

    def note(self, text: str) -> None:
        """Something to know before training begins; it is in the log already."""

    def describe_clients(self, config: Config, data: DataSet, directory: RunDirectory) -> None:
        """Say who trains on what, which only a simulation knows."""

    def begin(self, done: int, planned: Mapping[str, float]) -> None:
        """Rounds done before, and what each level will have spent at the end."""

    def round(self, record: RoundRecord) -> None:
        """A round has ended, and is committed."""

    def stopping(self) -> None:
        """The user has asked to stop after the round; called from a thread of its own."""

    def pictures(self, pictures: Pictures, path: Path) -> None:
        """Draw test images with what the final model finds in them."""

    def finish(self, config: Config, directory: RunDirectory, head: Head | None) -> None:
        """The final model and report are written: write the card and the curves."""

    def summary(self, config: Config, result: RunResult) -> None:
        """The run has ended."""
