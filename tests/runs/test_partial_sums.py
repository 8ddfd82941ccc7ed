"""Whole runs with and without workers that add up: the same model and ledgers, to the last bit."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from pathlib import Path

import pytest

from dp_fedmed import launch
from dp_fedmed.config import compose
from dp_fedmed.engines.local_grid import LocalGrid
from dp_fedmed.federation.partial_sums import RoundSum

COMMON = ("privacy.noise_seed=7", "federation.num_rounds=3")
DIGITS = ("task=digits", "federation.num_clients=5")
STYLES = {
    "user": ("task=breast_cancer", "federation.num_clients=6", "privacy=user"),
    "adaptive": (
        *("task=breast_cancer", "federation.num_clients=60", "federation.sample_rate=0.5"),
        *("privacy=user", "federation.sampler=poisson", "privacy.user.clipping=adaptive"),
        "privacy.user.noise_multiplier=0.8",
    ),
    "hybrid": ("task=breast_cancer", "federation.num_clients=6", "privacy=hybrid"),
    "hybrid, one noise": (
        *(*DIGITS[:1], "privacy=hybrid", "privacy.noise=server", "privacy.user.max_grad_norm=5"),
        "federation.num_clients=8",
    ),
    "sample, server": (*DIGITS, "privacy=sample", "privacy.noise=server"),
}


@pytest.fixture
def without_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and ids that are the same in every run."""
    monkeypatch.setattr(os, "urandom", lambda size: hashlib.shake_256(b"key").digest(size))
    monkeypatch.setattr(secrets, "token_hex", lambda size=8: "0" * 2 * int(size or 8))


@pytest.fixture
def sums(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often workers handed in a sum."""
    handed: list[int] = []
    add = RoundSum.add

    def counted(self: RoundSum, part: object) -> None:
        handed.append(1)
        add(self, part)  # type: ignore[arg-type]

    monkeypatch.setattr(RoundSum, "add", counted)
    return handed


def kept(folder: Path) -> dict[str, bytes]:
    """What a run leaves that must not depend on who added up; and nothing stays."""
    files = [folder / "model.safetensors", folder / "private" / "ledger.jsonl"]
    files += sorted((folder / "private" / "clients").glob("*.jsonl"))
    found = {str(file.relative_to(folder)): file.read_bytes() for file in files}
    shutil.rmtree(folder)
    return found


@pytest.mark.usefixtures("without_chance")
@pytest.mark.parametrize("style", list(STYLES))
def test_models_and_ledgers_do_not_depend_on_who_adds_up(
    style: str,
    tmp_path: Path,
    sums: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(workers: int) -> dict[str, bytes]:
        monkeypatch.setattr(launch, "num_workers", lambda config: workers)  # ledgers quote settings
        config = compose([*STYLES[style], *COMMON, f"run_dir={tmp_path}/run"])
        assert launch.run_federation(config).stopped == "completed"
        return kept(tmp_path / "run")

    alone = run(1)
    assert not sums
    assert run(2) == alone
    assert len(sums) > 3, "workers added up, in three rounds"
    assert run(3) == alone
    sums.clear()
    monkeypatch.setattr(LocalGrid, "adds_up", False)
    assert run(2) == alone
    assert not sums
