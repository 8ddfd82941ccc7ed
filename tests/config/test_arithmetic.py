"""What follows from settings alone."""

from __future__ import annotations

import pytest

from dp_fedmed.config import compose
from dp_fedmed.config.arithmetic import not_against_server
from dp_fedmed.run.privacy_report import observers


@pytest.mark.parametrize(
    "words",
    [
        ["privacy=sample"],
        ["privacy=user"],
        ["privacy=hybrid"],
        ["privacy=sample", "federation=centralized"],
        ["task=textures", "privacy=sample"],
        ["task=textures", "privacy=sample", "privacy.noise=client"],
    ],
)
def test_what_is_not_against_the_server_is_what_the_observer_table_leaves_out(
    words: list[str],
) -> None:
    config = compose(words)
    style = config.privacy.style
    units = [
        u
        for u, held in (("record", style.protects_records), ("client", style.protects_clients))
        if held
    ]
    (server, _) = observers(config, [{"unit": u, "epsilon": 1.0, "delta": 1e-5} for u in units])
    assert len(not_against_server(config)) == sum(server[unit] is None for unit in units)


def test_the_way_back_to_noise_at_the_clients_is_one_that_is_accepted() -> None:
    for style, key in (("sample", "privacy.noise=client"), ("hybrid", "privacy.noise=null")):
        words = [f"privacy={style}", "training.local_steps=1"]
        said = " ".join(not_against_server(compose([*words, "privacy.noise=server"])))
        assert key in said
        compose([*words, key])
