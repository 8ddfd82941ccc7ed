"""The tree of settings."""

from __future__ import annotations

import dataclasses

import pytest

from dp_fedmed.config import compose, settings
from dp_fedmed.config.setting import Resume, setting
from dp_fedmed.config.tree import declared


def test_the_tree_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        compose().training.lr = 1.0  # type: ignore[misc]


def test_a_setting_without_metadata_is_refused() -> None:
    @dataclasses.dataclass
    class Section:
        said: int = setting(1, "its meaning", within=(0, 2))
        silent: int = 1

    with pytest.raises(TypeError, match=r"section\.silent has no meaning, range and role"):
        declared(Section, "section.")


def test_a_section_gives_its_role_to_what_declares_none() -> None:
    roles = {key: known.resume for key, known in settings().items()}
    assert roles["data.partition.alpha"] is roles["model.fix"] is roles["seed"] is Resume.never
    assert roles["engine.workers"] is roles["data.path"] is Resume.free
    assert roles["training.lr"] is Resume.steers
    assert roles["training.batch_size"] is roles["privacy.user.max_grad_norm"] is Resume.new_phase
    assert roles["data_ledger"] is Resume.once
