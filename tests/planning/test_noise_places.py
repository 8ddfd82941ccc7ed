"""The places of noise side by side: what each leaves in the sum, and who is promised what."""

from __future__ import annotations

import math

import pytest

from dp_fedmed.config import compose
from dp_fedmed.planning.forecast import forecast
from dp_fedmed.planning.noise_places import PlacedNoise, noise_places

FULL = ("training.batch_size=100000", "training.local_steps=1", "training.optimizer=sgd")
RECORDS = {f"c{number}": 100 for number in range(4)}


def places(*words: str) -> list[PlacedNoise]:
    config = compose([*words, "federation.num_clients=4"])
    return noise_places(forecast(config, RECORDS, fast=True))


def test_one_noise_is_the_root_of_the_clients_smaller() -> None:
    client, server = places("privacy=sample", *FULL)
    assert (client.place, server.place) == ("client", "server")
    assert (client.is_chosen, server.is_chosen) == (True, False)
    assert client.noise == pytest.approx(math.sqrt(4) * server.noise)
    assert client.sigma == server.sigma == server.noise
    assert client.refused is server.refused is None


def test_the_server_is_promised_what_it_does_not_see() -> None:
    for chosen in ("client", "server"):
        client, server = places("privacy=sample", *FULL, f"privacy.noise={chosen}")
        assert [client.is_chosen, server.is_chosen] == [chosen == "client", chosen == "server"]
        assert server.server is None
        assert client.server == client.others == server.others <= 3.0


def test_a_place_that_a_run_would_refuse_says_why() -> None:
    _, server = places("privacy=sample", *FULL, "training.local_steps=3")
    assert "training.local_steps=1" in str(server.refused)


@pytest.mark.parametrize(
    "words",
    [
        ["privacy=user"],
        ["privacy=none"],
        ["privacy=sample", "federation=local_only"],
        ["task=textures", "privacy=sample", "anomaly.mechanism=noisy_rows"],
    ],
)
def test_where_nothing_is_to_be_chosen_nothing_is_shown(words: list[str]) -> None:
    assert places(*words) == []
