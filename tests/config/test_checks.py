"""Settings that contradict each other are refused by name."""

from __future__ import annotations

import pytest

from dp_fedmed.config import (
    Config,
    compose,
    get,
    tree_keys,
)
from dp_fedmed.config.checks import RANGES
from dp_fedmed.errors import ConfigError


@pytest.mark.parametrize(
    ("overrides", "keys"),
    [
        (["federation.min_clients=9"], ["federation.min_clients=9", "federation.num_clients=5"]),
        (["privacy=user", "federation.min_clients=2"], ["federation.min_clients", "privacy.style"]),
        (
            ["federation.min_clients=3", "federation.sample_rate=0.2"],
            ["federation.min_clients=3", "federation.sample_rate=0.2"],
        ),
        (
            ["federation.sampler=all", "federation.sample_rate=0.5"],
            ["federation.sampler=all", "federation.sample_rate=0.5"],
        ),
        (
            ["data.val_fraction=0.5", "data.test_fraction=0.5"],
            ["data.val_fraction=0.5", "data.test_fraction=0.5"],
        ),
        (
            ["engine.workers=1", "federation.round_timeout=3"],
            ["federation.round_timeout=3", "engine.workers=1"],
        ),
        (["engine.address=auto"], ["engine.address=auto", "engine=ray"]),
    ],
)
def test_a_contradiction_names_both_keys(overrides: list[str], keys: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        compose(overrides)
    assert all(key in str(caught.value) for key in keys)


def test_every_number_in_the_tree_has_a_range() -> None:
    config = compose()
    values = {item: get(config, item) for item in tree_keys(Config)}
    numbers = {
        item
        for item, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    assert numbers <= {key for key, _, _ in RANGES}


def test_the_old_word_for_patients_is_answered_with_the_new_one() -> None:
    with pytest.raises(ConfigError, match=r"data\.group_by=groups .*data\.group_by=patient"):
        compose(["data.group_by=groups"])
