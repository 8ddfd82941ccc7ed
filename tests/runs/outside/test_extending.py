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
from safetensors.numpy import load_file

from dp_fedmed import assemble
from dp_fedmed.config import Config, SamplerName, TaskKind
from dp_fedmed.federation import sampling
from dp_fedmed.federation.run_account import Question, RoundBudget
from dp_fedmed.launch import run_federation
from dp_fedmed.learning.networks import task as base
from dp_fedmed.privacy import History, PrivacyAccountant, PrivacyEvent, calibrate
from dp_fedmed.privacy.accounting.history import ACCOUNTANTS
from dp_fedmed.privacy.mechanisms import MECHANISMS, ClientUpdates
from dp_fedmed.privacy.mechanisms.base import add
from dp_fedmed.run.directory import RunDirectory
from tests.runs.outside.test_docs import ROOT, blocks

BLOCKS = blocks(ROOT / "docs/extending.md", "python")
USED = [
    *("PerLayer", "EverySecond", "UpperLimit", "load"),
    *("zcdp", "FedYogi", "WithYogi"),
    *("size", "MeteredGrid", "traffic"),
]


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
    assert made == USED
    assert len(BLOCKS) == 7, "one for each extension point"


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
        assert np.linalg.norm(moved * mechanism.sums.grid.step) <= most


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


def test_the_new_data_set_is_loaded_by_its_name(
    page: ModuleType, small: Callable[..., Config]
) -> None:
    own = ["allow_code=[my_extensions]", "data.name=my_extensions.load"]
    config = small(*own, "data.partition.name=natural", "federation.num_rounds=4")
    result = run_federation(config)
    assert result.test["accuracy"] > 0.8  # the two clouds are √8 apart
    shown = json.loads((Path(config.run_dir) / "partition.json").read_text())
    assert len(shown["clients"]) == 4


def test_the_new_accountant_calibrates_and_enforces(
    page: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ACCOUNTANTS, "zcdp", page.zcdp)
    target = {"target_epsilon": 8.0, "target_delta": 1e-5}
    rounds = 20

    def step(sigma: float) -> PrivacyEvent:
        return PrivacyEvent.poisson(unit="client", noise_multiplier=sigma, sample_rate=0.5)

    sigma = calibrate(lambda s: [step(s).times(rounds)], accountant="zcdp", **target)
    history = History([step(sigma).times(rounds)])
    assert 7.98 < history.epsilon(delta=1e-5, method="zcdp") <= 8.0
    assert history.epsilon(delta=1e-5) < 8.0, "RDP would allow more rounds, and is not asked"
    budget = RoundBudget("zcdp")
    asked = Question(event=step(sigma), before=History(), target=8.0, delta=1e-5, planned=99)
    assert budget.most(asked) == rounds
    accountant = PrivacyAccountant(1e-5, target_epsilon=8.0, method="zcdp")
    accountant.record(step(sigma).times(rounds))
    assert accountant.would_exceed(step(sigma))
    again = PrivacyAccountant(1e-5)
    again.load_state_dict(accountant.state_dict())
    assert again.method == "zcdp"
    assert again.get_epsilon(unit="client") == history.epsilon(delta=1e-5, method="zcdp")


def test_the_new_server_optimizer_steps_and_its_moments_are_in_the_checkpoint(
    page: ModuleType, small: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small("task=diabetes", "federation.server_lr=0.05")
    monkeypatch.setattr(assemble, "Assembly", page.WithYogi)
    result = run_federation(config)
    monkeypatch.undo()
    plain = run_federation(small("task=diabetes", "federation.server_lr=0.05"))
    assert result.test != plain.test
    optimizer = page.FedYogi(lr=1.0, tau=1e-3)
    model, update = {"w": np.zeros(2)}, {"w": np.array([0.5, -2.0])}
    stepped = optimizer.step(model, update)["w"]
    second = 1e-6 + 0.01 * np.array([0.25, 4.0])  # v − (1 − β₂)·u²·sign(v − u²)
    np.testing.assert_allclose(stepped, 0.1 * update["w"] / (np.sqrt(second) + 1e-3))
    kept = load_file(Path(config.run_dir) / "last" / "optimizer.safetensors")
    assert {key.split("/")[0] for key in kept} == {"first", "second"}


def test_the_new_engine_measures_what_a_federation_sends(
    page: ModuleType, small: Callable[..., Config]
) -> None:
    config = small("task=diabetes", "federation.num_rounds=1")
    sent, received = page.traffic(config)
    model = RunDirectory(Path(config.run_dir)).load_model()
    header = 128 * len(model)  # of the .npy format
    assert received == 4 * (header + sum(value.nbytes for value in model.values()))
    assert sent == 2 * received, "the model to train, and the next one to evaluate"
