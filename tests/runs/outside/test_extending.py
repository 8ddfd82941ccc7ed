"""`docs/extending.md` is run as it stands: its code is put where the page says, and used.

Nothing of it is repeated here. A block that no test uses fails `test_every_block_is_used`.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from dp_fedmed.config import Config, SamplerName, TaskKind
from dp_fedmed.federation import sampling
from dp_fedmed.launch import run_federation
from dp_fedmed.learning.networks import task as base
from dp_fedmed.privacy import PrivacyEvent
from dp_fedmed.privacy.mechanisms import MECHANISMS, ClientUpdates
from dp_fedmed.privacy.mechanisms.base import add
from tests.runs.outside.test_docs import ROOT, blocks

BLOCKS = blocks(ROOT / "docs/extending.md", "python")
USED = {"UpperLimit", "PerLayer", "EverySecond"}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """A module of the page's code, importable as a reader's own would be."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "my_extensions.py").write_text("\n\n".join(BLOCKS))
    sys.path.insert(0, str(folder))
    yield importlib.import_module("my_extensions")
    sys.path.remove(str(folder))
    del sys.modules["my_extensions"]


def test_every_block_is_used() -> None:
    made = [
        node.name
        for code in BLOCKS
        for node in ast.parse(code).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
    ]
    assert sorted(made) == sorted(USED)
    assert len(BLOCKS) == len(USED)


def test_the_new_task_trains_privately_and_its_metric_is_reported(
    page: ModuleType, small: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(base.TASKS, TaskKind.regression, "my_extensions.UpperLimit")
    words = ["recipe=none", "privacy.sample.target_epsilon=1000", "federation.num_rounds=6"]
    result = run_federation(small("task=diabetes", "privacy=sample", *words))
    assert 0.65 < result.test["coverage"] < 1.0  # of a mean it would be about a half
    assert {"loss", "rmse", "mae", "r2"} <= result.test.keys()


def test_the_new_mechanism_bounds_a_client_and_releases(
    page: ModuleType, small: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small("task=diabetes", "privacy=user", "model._target_=dp_fedmed.models.MLP")
    made: list[ClientUpdates] = []

    def noted(*given: Any, **settings: Any) -> ClientUpdates:
        made.append(page.PerLayer(*given, **settings))
        return made[-1]

    monkeypatch.setitem(MECHANISMS, "fixed", noted)
    assert run_federation(config).rounds == 2
    assert len(made) == 1, "the run was noised by it"
    most = config.privacy.user.max_grad_norm
    event = PrivacyEvent.full(unit="client", noise_multiplier=1.0)
    mechanism = page.PerLayer(event, max_norm=most, expected_cohort=4.0)
    like = {"a": np.zeros((3, 2)), "b": np.zeros(5)}
    rng = np.random.default_rng(0)
    for update in (
        {name: 1e9 * rng.standard_normal(value.shape) for name, value in like.items()},
        {"a": np.full((3, 2), 1e9), "b": np.zeros(5)},
        {"a": np.full((3, 2), np.nan), "b": np.full(5, 1e9)},
    ):
        total = mechanism.empty(like)
        add(total, mechanism.bound(update, client="a"))
        moved = np.concatenate([value.ravel() for value in total.values()])
        assert np.linalg.norm(moved) <= most * (1 + 1e-9)


def test_the_new_sampler_draws_half_and_claims_no_amplification(
    page: ModuleType, small: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["task=diabetes", "privacy=user", "federation.sampler=all"]
    config = small(*words, "privacy.user.noise_multiplier=5", "federation.num_rounds=1")
    epsilon = {}
    for kind in (sampling.AllSampler, page.EverySecond):
        monkeypatch.setitem(sampling.SAMPLERS, SamplerName.all, kind)
        own = dataclasses.replace(config, run_dir=f"{config.run_dir}-{kind.__name__}")
        run_federation(own)
        path = Path(own.run_dir)
        report = json.loads((path / "privacy_report.json").read_text())
        epsilon[kind] = report["guarantees"][0]["epsilon"]
        lines = (path / "private" / "rounds.jsonl").read_text().splitlines()
        names = json.loads(lines[-1])["names"]
    assert len(names) == 2  # of four
    assert epsilon[page.EverySecond] == epsilon[sampling.AllSampler]
