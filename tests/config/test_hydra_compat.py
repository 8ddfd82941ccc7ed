"""What is used of Hydra's private modules is there, and is as it is used."""

from __future__ import annotations

import ast
from pathlib import Path
from types import ModuleType

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins

import dp_fedmed

PACKAGE = Path(dp_fedmed.__file__).parent


@pytest.fixture
def compat() -> ModuleType:
    """Imported after Hydra has looked for plugins, which loads its sweeper anew."""
    Plugins.instance()
    from dp_fedmed.config import hydra_compat

    return hydra_compat


def test_the_sweeper_splits_words_into_jobs(compat: ModuleType) -> None:
    sweeper = compat.BasicSweeper(max_batch_size=None)
    words = OverridesParser.create().parse_overrides(["a=1,2", "b=x,y"])
    (batch,) = sweeper.split_arguments(words, max_batch_size=None)
    assert [list(job) for job in batch] == [
        ["a=1", "b=x"],
        ["a=1", "b=y"],
        ["a=2", "b=x"],
        ["a=2", "b=y"],
    ]


def test_its_settings_name_the_class_and_can_be_extended(compat: ModuleType) -> None:
    settings = compat.BasicSweeperConf()
    assert settings._target_ == f"{compat.BasicSweeper.__module__}.BasicSweeper"
    assert (settings.max_batch_size, settings.params) == (None, None)


def test_no_other_module_looks_into_hydras_private_ones() -> None:
    for file in sorted(PACKAGE.rglob("*.py")):
        if file.name == "hydra_compat.py":
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            named = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            named += [each.name for each in node.names] if isinstance(node, ast.Import) else []
            for module in named:
                assert not module.startswith(("hydra._", "omegaconf._")), file
