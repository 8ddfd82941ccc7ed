"""What of a round may be shown, and how a budget is told."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from dp_fedmed.config import compose
from dp_fedmed.federation.rounds import RoundRecord
from dp_fedmed.learning import Evaluation, Pictures
from dp_fedmed.learning.base import ClientModel
from dp_fedmed.run.directory import EVALUATION_FILE, PICTURES_FILE, RunDirectory
from dp_fedmed.run.observer import Observer
from dp_fedmed.run.results import CLIENTS_FILE, describe_budget, public_record, write_evaluation


def test_a_private_round_shows_nobody() -> None:
    record = RoundRecord(
        server_round=3,
        cohort=["north"],
        failed={"south": "no reply in time"},
        train_loss=0.5,
        server_metrics={"accuracy": 0.9},
        client_metrics={"north": {"accuracy": 0.8}},
        seconds=1.5,
        epsilons={"sample": 9.0},
    )
    shown = public_record(record, {"sample": 2.0})
    assert (shown.server_round, shown.seconds) == (3, 1.5)
    assert (shown.server_metrics, shown.epsilons) == ({"accuracy": 0.9}, {"sample": 2.0})
    assert (shown.cohort, shown.failed, shown.client_metrics) == ([], {}, {})
    assert shown.train_loss is None
    assert "north" not in repr(shown)
    assert "south" not in repr(shown)


def test_a_budget_is_told_with_its_targets_and_rounds() -> None:
    config = compose(["privacy=hybrid", "privacy.sample.noise_multiplier=1.0"])
    said = describe_budget(config, {"sample": 1.23456, "user": 2.0}, 4)
    assert said == "ε_sample 1.235, ε_user 2.000 of 8, 4 rounds left in the budget"
    assert describe_budget(config, {"user": 2.0}, None) == "ε_user 2.000 of 8"


IMAGE = np.zeros((1, 1, 2, 2), np.float32)
PICTURES = Pictures(
    kind="segmentation", images=IMAGE, truth=IMAGE[:, 0], found=IMAGE[:, 0], titles=["a"]
)


class Drawing(Observer):
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
