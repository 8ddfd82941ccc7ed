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
    client, shares, server = places("privacy=sample", *FULL)
    assert [each.place for each in (client, shares, server)] == ["client", "shares", "server"]
    assert [each.is_chosen for each in (client, shares, server)] == [True, False, False]
    assert client.noise == pytest.approx(math.sqrt(4) * server.noise)
    assert shares.noise == pytest.approx(math.sqrt(4 / 3) * server.noise)
    assert shares.honest == 3, "of four none may drop out, and one may collude"
    assert client.sigma == shares.sigma == server.sigma == {"sample": server.noise}
    assert client.refused is shares.refused is server.refused is None


def test_whole_clients_have_the_same_choice() -> None:
    client, shares, server = places("privacy=user")
    assert server.is_chosen
    assert client.noise == pytest.approx(2.0 * server.noise)
    assert server.server == {}
    assert client.server == shares.server == server.others
    assert list(server.others) == ["user"]


def test_both_units_have_a_row_for_two_noises() -> None:
    two, client, shares, server = places("privacy=hybrid", *FULL)
    assert two.place == "null"
    assert two.is_chosen
    assert list(two.server) == ["sample"], "the server sees whole clients"
    assert list(shares.server) == ["sample", "user"] == list(client.server)
    assert list(server.server) == []
    assert shares.noise > server.noise


def test_the_server_is_promised_what_it_does_not_see() -> None:
    for chosen in ("client", "shares", "server"):
        found = places("privacy=sample", *FULL, f"privacy.noise={chosen}")
        assert [each.place for each in found if each.is_chosen] == [chosen]
        client, shares, server = found
        assert server.server == {}
        assert client.server == client.others == server.others == shares.server
        assert client.others["sample"] <= 3.0


def test_a_place_that_a_run_would_refuse_says_why() -> None:
    _, shares, server = places("privacy=sample", *FULL, "training.local_steps=3")
    for each in (shares, server):
        assert "training.local_steps=1" in str(each.refused)
    sampled = places("privacy=user", "federation.sample_rate=0.5")
    assert ["sampler" in str(each.refused) for each in sampled] == [True, True, False]


@pytest.mark.parametrize(
    "words",
    [
        ["privacy=none"],
        ["privacy=sample", "federation=local_only"],
        ["task=textures", "privacy=sample", "anomaly.mechanism=noisy_rows"],
    ],
)
def test_where_nothing_is_to_be_chosen_nothing_is_shown(words: list[str]) -> None:
    assert places(*words) == []
