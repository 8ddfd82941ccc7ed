"""The tree of settings."""

from __future__ import annotations

import dataclasses

import pytest

from dp_fedmed.config import (
    compose,
)


def test_the_tree_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        compose().training.lr = 1.0  # type: ignore[misc]
