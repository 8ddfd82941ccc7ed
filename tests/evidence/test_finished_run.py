"""A finished run is opened again only if everything in it fits together."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from dp_fedmed.errors import CheckpointError, ConfigError, LedgerError
from dp_fedmed.evidence.finished_run import DIGEST, SIZES, FinishedRun
from dp_fedmed.run.directory import MODEL_FILE, PARTITION_FILE, REPORT_FILE, RunDirectory
from dp_fedmed.run.spent import LEDGER_FILE
from tests.runs.finished import WORDS, make_run


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "sample"
    make_run(path, [*WORDS["sample"], "federation.num_rounds=1"])
    return path


@pytest.fixture
def run_dir(made: Path, tmp_path: Path) -> Path:
    """A copy, to break."""
    return Path(shutil.copytree(made, tmp_path / "run", symlinks=True))


def test_a_whole_run_has_its_model_its_claim_and_its_members(made: Path) -> None:
    run = FinishedRun.open(made)
    assert run.data_checked == DIGEST
    assert run.report["guarantees"][0]["unit"] == "record"
    sizes = [len(records) for records in run.members()]
    assert sizes == [run.sizes[f"client-{n:05d}"] for n in range(4)]
    held = RunDirectory(made).load_model()
    assert all(np.array_equal(run.model[name], held[name]) for name in held)


def test_without_a_ledger_sizes_are_compared(run_dir: Path) -> None:
    shutil.rmtree(run_dir / "private")
    assert FinishedRun.open(run_dir).data_checked == SIZES
    file = run_dir / REPORT_FILE
    report = json.loads(file.read_text())
    report["guarantees"][0]["clients"]["client-00000"]["records"] += 1
    file.write_text(json.dumps(report))
    with pytest.raises(ConfigError, match="the data have changed since"):
        list(FinishedRun.open(run_dir).members())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("config.yaml", "holds no run"),
        (MODEL_FILE, "dp-fedmed resume"),
        (PARTITION_FILE, "deployed sites"),
        (REPORT_FILE, "what the run claims is unknown"),
    ],
)
def test_what_is_missing_is_named(name: str, said: str, run_dir: Path) -> None:
    (run_dir / name).unlink()
    with pytest.raises(ConfigError, match=said):
        FinishedRun.open(run_dir)


@pytest.mark.parametrize(
    "change", [{"epsilon": -1.0}, {"delta": 1.0}, {"unit": "patient"}, {"epsilon": "much"}]
)
def test_a_claim_that_cannot_be_is_refused(change: dict[str, object], run_dir: Path) -> None:
    file = run_dir / REPORT_FILE
    report = json.loads(file.read_text())
    report["guarantees"][0] |= change
    file.write_text(json.dumps(report))
    with pytest.raises(ConfigError, match="missing or broken"):
        FinishedRun.open(run_dir)


def test_a_changed_model_or_ledger_is_refused(run_dir: Path) -> None:
    directory = RunDirectory(run_dir)
    model = directory.load_model()
    directory.save_model({"other": np.zeros(3, np.float32)})
    with pytest.raises(CheckpointError, match="does not fit the run's settings"):
        FinishedRun.open(run_dir)
    directory.save_model(model)
    FinishedRun.open(run_dir)
    ledger = run_dir / LEDGER_FILE
    ledger.write_bytes(ledger.read_bytes().replace(b'"round":1', b'"round":0'))
    with pytest.raises(LedgerError):
        FinishedRun.open(run_dir)
