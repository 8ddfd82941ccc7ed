"""Settings that contradict each other are refused by name."""

from __future__ import annotations

import dataclasses
from typing import get_args, get_type_hints

import pytest

from dp_fedmed.config import (
    Config,
    compose,
    settings,
)
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
    def kinds(node: type, prefix: str = "") -> dict[str, object]:
        found: dict[str, object] = {}
        for name, kind in get_type_hints(node).items():
            inner = dataclasses.is_dataclass(kind)
            found |= kinds(kind, f"{prefix}{name}.") if inner else {f"{prefix}{name}": kind}
        return found

    numbers = {key for key, kind in kinds(Config).items() if {kind, *get_args(kind)} & {int, float}}
    assert "federation.min_clients" in numbers
    assert numbers == {key for key, known in settings().items() if known.within is not None}


def test_the_old_word_for_patients_is_answered_with_the_new_one() -> None:
    with pytest.raises(ConfigError, match=r"data\.group_by=groups .*data\.group_by=patient"):
        compose(["data.group_by=groups"])
