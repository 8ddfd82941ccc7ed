"""Words that are mistaken are answered with the nearest that count."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dp_fedmed.commands.arguments import with_config_dir
from dp_fedmed.config import compose
from dp_fedmed.config.overrides import hint
from dp_fedmed.errors import ConfigError

pytestmark = pytest.mark.usefixtures("strict")


@pytest.mark.parametrize("style", ["sample", "user"])
def test_hints_prefer_what_counts(style: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean 'privacy.{style}.target_epsilon'\\?"):
        compose([f"privacy={style}", "privacy.epsilon=3"])
    assert hint("privacy.sample.epsilon", ["privacy=none"]).endswith("hybrid?")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("dta: {name: digits}", r"task/mine\.yaml: unknown key 'dta'; did you mean 'data'"),
        ("data: {nmae: digits}", r"unknown key 'data\.nmae'; did you mean 'data\.name'"),
        ("data: {name: [", r"mine\.yaml, line \d+, column \d+: "),
        ("defaults: [override /trainng: images]", r"'trainng', which is no group.*'training'"),
    ],
)
def test_a_mistake_in_ones_own_file_is_named_with_its_place(
    content: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / "mine.yaml").write_text(f"# @package _global_\n{content}\n")
    words = with_config_dir([f"--config-dir={tmp_path}", "task=mine"])
    with pytest.raises(ConfigError, match=said):
        compose(words)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("model=resnet18", "model._target_=torchvision.models.resnet18"),
        ("model=unet", "model._target_=dp_fedmed.models.UNet"),
        ("data=digits", "task=digits or data.name=digits"),
        ("checkpoint=3", "checkpoint.every="),
    ],
)
def test_a_section_is_no_group(word: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        compose([word])
