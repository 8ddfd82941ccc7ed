"""The files of a run that people look at: who holds what, test images, curves, the privacy card."""

from __future__ import annotations

from pathlib import Path

from dp_fedmed.config import Config
from dp_fedmed.data import DataSet, training_parts
from dp_fedmed.learning import Pictures
from dp_fedmed.privacy.ledger import Head
from dp_fedmed.reporting.words import describe_sites
from dp_fedmed.run.directory import (
    METRICS_PICTURE,
    PARTITION_FILE,
    PARTITION_PICTURE,
    RunDirectory,
)
from dp_fedmed.run.observer import Observer


class RunPictures(Observer):
    """The files that people look at; each observer shows the rounds in its own way."""

    def describe_clients(self, config: Config, data: DataSet, directory: RunDirectory) -> None:
        """Who trains on what, as a table and a picture."""
        from dp_fedmed.reporting.partition import partition_rows, plot_partition

        parts = training_parts(config, data)
        held = {"schema": 1, "clients": partition_rows(data, parts)}
        directory.write_json(PARTITION_FILE, held, durable=False)
        plot_partition(data, parts, directory.path / PARTITION_PICTURE)

    def pictures(self, pictures: Pictures, path: Path) -> None:
        """A sheet of test images."""
        from dp_fedmed.reporting.sheets import anomaly_sheet, segmentation_sheet

        draw = segmentation_sheet if pictures.kind == "segmentation" else anomaly_sheet
        draw(pictures.images, pictures.truth, pictures.found, list(pictures.titles), path)

    def finish(self, config: Config, directory: RunDirectory, head: Head | None) -> None:
        """The privacy card, and the curves of the run."""
        from dp_fedmed.reporting.figures import plot_metrics
        from dp_fedmed.reporting.report import write_card

        write_card(directory.path, head)
        plot_metrics(
            directory.metrics(),
            config.task.metric,
            f"{config.task.name}: {describe_sites(config)}, privacy {config.privacy.style}",
            directory.path / METRICS_PICTURE,
        )
