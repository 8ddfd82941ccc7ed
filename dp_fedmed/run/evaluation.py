"""What belongs to a final model besides itself, on disk."""

from __future__ import annotations

from dp_fedmed.learning import Evaluation
from dp_fedmed.run.directory import EVALUATION_FILE, MODEL_FILE, PICTURES_FILE, RunDirectory
from dp_fedmed.run.observer import Observer

CLIENTS_FOLDER, CLIENTS_FILE = "clients", "clients.json"


def write_evaluation(evaluation: Evaluation, directory: RunDirectory, observer: Observer) -> None:
    """What belongs to a final model besides itself; one folder per client that has its own."""
    if evaluation.content is not None:
        directory.write_json(EVALUATION_FILE, dict(evaluation.content), durable=False)
    if evaluation.pictures is not None:
        observer.pictures(evaluation.pictures, directory.path / PICTURES_FILE)
    described = {}
    for name, own in evaluation.clients.items():
        folder = directory.path / CLIENTS_FOLDER / name
        folder.mkdir(parents=True, exist_ok=True)
        client = RunDirectory(folder)
        client.save_model(own.model)
        write_evaluation(own.evaluation, client, observer)
        described[name] = {
            "model": str((folder / MODEL_FILE).relative_to(directory.path)),
            "val": dict(own.val),
            "test": dict(own.test),
        }
    if described:
        directory.write_json(CLIENTS_FILE, described)
