"""What belongs to a final model besides itself: one file each, and a folder per client."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from dp_fedmed.learning import Evaluation, Pictures
from dp_fedmed.learning.base import ClientModel
from dp_fedmed.run.directory import EVALUATION_FILE, PICTURES_FILE, RunDirectory
from dp_fedmed.run.evaluation import CLIENTS_FILE, write_evaluation
from dp_fedmed.run.observer import SilentObserver

IMAGE = np.zeros((1, 1, 2, 2), np.float32)
PICTURES = Pictures(
    kind="segmentation", images=IMAGE, truth=IMAGE[:, 0], found=IMAGE[:, 0], titles=["a"]
)


class Drawing(SilentObserver):
    """Remembers where it was told to draw."""

    def __init__(self) -> None:
        self.drawn: list[Path] = []

    def pictures(self, pictures: Pictures, path: Path) -> None:
        assert pictures is PICTURES
        self.drawn.append(path)


def test_what_there_is_nothing_of_is_not_written(tmp_path: Path) -> None:
    observer = Drawing()
    write_evaluation(Evaluation(), RunDirectory(tmp_path), observer)
    assert list(tmp_path.iterdir()) == []
    assert observer.drawn == []


def test_content_is_written_and_pictures_are_left_to_who_watches(tmp_path: Path) -> None:
    observer = Drawing()
    evaluation = Evaluation(content={"confusion": [[1, 0], [0, 2]]}, pictures=PICTURES)
    write_evaluation(evaluation, RunDirectory(tmp_path), observer)
    held = json.loads((tmp_path / EVALUATION_FILE).read_text())
    assert held["confusion"] == [[1, 0], [0, 2]]
    assert observer.drawn == [tmp_path / PICTURES_FILE]
    assert not (tmp_path / CLIENTS_FILE).exists()


def test_each_client_with_a_model_of_its_own_has_a_folder(tmp_path: Path) -> None:
    def own(value: float) -> ClientModel:
        return ClientModel(
            model={"w": np.full(2, value, np.float32)},
            val={"accuracy": value},
            test={"accuracy": value / 2},
            evaluation=Evaluation(content={"of": value}, pictures=PICTURES),
        )

    observer = Drawing()
    clients = {"client-00000": own(0.5), "client-00001": own(1.0)}
    write_evaluation(Evaluation(clients=clients), RunDirectory(tmp_path), observer)
    described = json.loads((tmp_path / CLIENTS_FILE).read_text())
    assert described.keys() >= clients.keys()
    for name, client in clients.items():
        held = described[name]
        assert (held["val"], held["test"]) == (client.val, client.test)
        folder = tmp_path / Path(held["model"]).parent
        assert folder == tmp_path / "clients" / name
        assert RunDirectory(folder).load_model()["w"].tolist() == client.model["w"].tolist()
        assert json.loads((folder / EVALUATION_FILE).read_text())["of"] == client.val["accuracy"]
        assert folder / PICTURES_FILE in observer.drawn
    assert not (tmp_path / EVALUATION_FILE).exists(), "there is no model of all"
