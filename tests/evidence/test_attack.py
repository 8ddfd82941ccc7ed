"""Membership inference on real runs: it finds what is there, and refuses what it cannot trust."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dp_fedmed.cli import main
from dp_fedmed.config import Config, DataConfig, compose
from dp_fedmed.data import DataSet, Records
from dp_fedmed.evidence.attack_report import attack_json
from dp_fedmed.evidence.claim import client_claim, record_claim
from dp_fedmed.evidence.finished_run import FinishedRun
from dp_fedmed.evidence.membership import attack_run
from dp_fedmed.evidence.roc import Roc
from dp_fedmed.launch import run_federation
from dp_fedmed.privacy.streams.noise import NoiseStream
from dp_fedmed.run.durable import RunLock
from tests.conftest import without_privacy_unless_given

HERE = __name__


def load_noisy(config: DataConfig, seed: int) -> DataSet:
    """Labels that have nothing to do with the records: whoever fits them has memorised them.

    A file at `data.path` with the word "shifted" moves the test part; with "other", all records.
    """
    word = Path(config.path).read_text() if config.path else ""
    rng = np.random.default_rng([seed, word == "other"])

    def records(n: int, shift: float = 0.0) -> Records:
        x = rng.normal(size=(n, 20)) + shift
        return Records(x.astype(np.float32), rng.integers(0, 3, n))

    test = records(500, shift=8.0 if word == "shifted" else 0.0)
    return DataSet(records(200), records(500), test, num_classes=3, class_names=("a", "b", "c"))


def memorising(run_dir: Path, *overrides: str) -> Config:
    return compose(
        [
            *without_privacy_unless_given(overrides),
            f"data.name={HERE}.load_noisy",
            "allow_code=[tests]",
            "recipe=none",
            "data.client_val_fraction=0",
            "model.args.hidden=[64]",
            "training.local_epochs=5",
            "federation.num_clients=4",
            "federation.num_rounds=20",
            "federation.evaluate_every=0",
            "federation.client_evaluate_every=0",
            "engine.workers=1",
            f"run_dir={run_dir}",
            *overrides,
        ]
    )


@pytest.fixture(scope="module")
def memorised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without privacy that knows its records by heart; not to be changed."""
    folder = tmp_path_factory.mktemp("memorised") / "run"
    run_federation(memorising(folder))
    return folder


@pytest.fixture
def broken(memorised: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return Path(shutil.copytree(memorised, tmp_path / "run", symlinks=True))


def test_a_model_that_memorised_is_found_out_and_says_so(
    broken: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["attack", str(broken)]) == 0
    text = (broken / "attack.json").read_text()
    report = json.loads(text)
    assert report["auc_interval"][0] > 0.8
    assert report["advantage"] > 0.5
    assert report["tpr_at_fpr"]["0.01"] > 0.03
    assert report["members"] > 180
    assert report["non_members"] > 900
    assert report["too_few_non_members_for"] == ["0.001"]
    assert report["bound"]["epsilon"] is None
    assert report["data_checked"] == "digest"
    assert "promises nothing" in report["statement"]
    assert "operator" in report["outside_the_guarantee"]
    assert (broken / "attack.png").stat().st_size > 10_000
    assert str(broken) not in text
    assert str(Path.home()) not in text
    assert "better than guessing" in capsys.readouterr().out.replace("\n", " ")


def test_the_same_training_with_a_guarantee_gives_nothing_away(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run_federation(memorising(folder, "privacy=sample", "privacy.sample.target_epsilon=3"))
    assert main(["attack", str(folder)]) == 0
    report = json.loads((folder / "attack.json").read_text())
    assert report["auc"] < 0.62
    assert report["tpr_at_fpr"]["0.01"] < 0.06
    assert not report["exceeds_bound"]
    bound = report["bound"]
    assert bound["epsilon"] == pytest.approx(3.0, rel=1e-2)
    assert bound["tpr_at_fpr"]["0.01"] == pytest.approx(0.01 * np.exp(bound["epsilon"]), rel=1e-2)
    assert bound["from"] == "the guarantee for a record"


def test_a_build_without_noise_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    silent = lambda self, shape, *, std, dtype=np.float64: np.zeros(shape, dtype)  # noqa: E731
    monkeypatch.setattr(NoiseStream, "normal", silent)
    folder = tmp_path / "run"
    private = ("privacy=sample", "privacy.sample.target_epsilon=0.5", "training.lr=0.3")
    run_federation(memorising(folder, *private))
    assert main(["attack", str(folder)]) == 3
    report = json.loads((folder / "attack.json").read_text())
    assert report["exceeds_bound"]
    for row in report["exceeds_bound_at"].values():
        assert row["tpr_at_least"] > row["allowed"]
    assert "EXCEEDS THE BOUND" in report["statement"]
    assert "dp-fedmed audit" in capsys.readouterr().out.replace("\n", " ")


def refusal(capsys: pytest.CaptureFixture[str], *words: str, code: int = 2) -> str:
    assert main(["attack", *words]) == code
    said = capsys.readouterr().err
    assert said.startswith("dp-fedmed: ")
    assert said.count("\n") == 1
    return said


def test_what_is_no_finished_run_is_refused_in_one_sentence(
    broken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "not a run directory" in refusal(capsys, str(tmp_path / "nothing"))
    assert "config.yaml is missing" in refusal(capsys, str(tmp_path))
    assert "at most data.path=" in refusal(capsys, str(broken), "seed=3")
    held = RunLock(broken)
    assert "in use" in refusal(capsys, str(broken), code=1)
    held.release()
    model = broken / "model.safetensors"
    whole = model.read_bytes()
    model.write_bytes(whole[:-7])
    assert "model.safetensors is broken" in refusal(capsys, str(broken), code=1)
    model.unlink()
    assert "dp-fedmed resume" in refusal(capsys, str(broken))
    model.write_bytes(whole)
    report = broken / "privacy_report.json"
    text = report.read_text()
    report.write_text(text.replace('"guarantees": []', '"guarantees": [{"unit": "record"}]'))
    assert "missing or broken" in refusal(capsys, str(broken))
    report.write_text(text)
    settings = broken / "config.yaml"
    settings.write_text(settings.read_text().replace("seed: 0", "seed: 1"))
    assert "was edited" in refusal(capsys, str(broken))
    (broken / "partition.json").unlink()
    assert "deployed" in refusal(capsys, str(broken))
    assert not (broken / "attack.json").exists()


def test_other_data_than_the_runs_are_refused(
    memorised: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "data"
    file.write_text("other")
    said = refusal(capsys, str(memorised), f"data.path={file}")
    assert "not those that the run was trained on" in said
    moved = tmp_path / "moved"  # the same records at another place
    moved.write_text("")
    assert FinishedRun.open(memorised, data_path=str(moved)).data_checked == "digest"


def test_without_its_ledger_sizes_are_compared_or_the_doubt_is_stated(
    broken: Path, tmp_path: Path
) -> None:
    shutil.rmtree(broken / "private")
    run = FinishedRun.open(broken)
    assert run.data_checked == "not checked"
    assert "could not be checked" in attack_json(run, attack_run(run))["statement"]


def test_a_test_part_of_another_population_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_text("shifted")
    folder = tmp_path / "run"
    run_federation(memorising(folder, f"data.path={file}", "federation.num_rounds=3"))
    attack = attack_run(FinishedRun.open(folder))
    assert any("another population" in note for note in attack.notes)
    assert len(attack.per_class.roc.others) <= 500


def test_records_that_are_also_held_out_are_no_non_members(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    name = f"data.name={HERE}.load_with_copies"
    run_federation(memorising(folder, name, "federation.num_rounds=1"))
    attack = attack_run(FinishedRun.open(folder))
    assert any(note.startswith("60 held-out records equal") for note in attack.notes)


def load_with_copies(config: DataConfig, seed: int) -> DataSet:
    data = load_noisy(config, seed)
    copies = Records(
        np.concatenate([data.train.x[:60], data.val.x]),
        np.concatenate([data.train.y[:60], data.val.y]),
    )
    return DataSet(data.train, copies, data.test, data.num_classes, data.class_names)


def test_a_guarantee_for_a_client_is_worth_half_for_a_record_of_it(tmp_path: Path) -> None:
    """A client without one record is another client: one goes, another comes."""
    folder = tmp_path / "run"
    run_federation(
        memorising(
            folder,
            "privacy=user",
            "privacy.user.target_epsilon=2",
            "federation.num_clients=40",
            "federation.num_rounds=1",
        )
    )
    run = FinishedRun.open(folder)
    record, client = record_claim(run.report), client_claim(run.report)
    assert record is not None
    assert client is not None
    assert client.epsilon == pytest.approx(2.0, rel=1e-2)
    assert record.epsilon > 2 * client.epsilon
    report = attack_json(run, attack_run(run))
    assert report["clients"]["members"] == 40
    assert report["clients"]["bound"]["epsilon"] == client.epsilon
    assert report["clients"]["auc_interval"][0] < 0.6
    assert "Whole clients" in report["statement"]


@pytest.mark.parametrize(
    ("overrides", "least"),
    [
        (["task=textures", "data.num_records=90", "data.image_size=32"], 0.7),
        (["task=cells", "data.num_records=50", "data.image_size=32"], 0.0),
    ],
)
def test_detectors_and_segmenters_are_attacked_too(
    overrides: list[str], least: float, small: Callable[..., Config]
) -> None:
    config = small("federation.num_rounds=1", "anomaly.coreset_size=200", *overrides)
    run_federation(config)
    run = FinishedRun.open(Path(config.run_dir))
    report = attack_json(run, attack_run(run))
    assert report["auc"] > least
    assert report["too_few_non_members_for"] == ["0.001", "0.01"]


def test_a_memory_bank_gives_its_images_away_and_a_private_detector_does_not(
    small: Callable[..., Config],
) -> None:
    def attacked(*words: str) -> Roc:
        config = small("task=textures", "data.num_records=150", "data.image_size=32", *words)
        run_federation(config)
        return attack_run(FinishedRun.open(Path(config.run_dir))).one_threshold.roc

    bank = attacked("anomaly.coreset_size=500", "federation.num_rounds=1")
    assert bank.auc > 0.8
    assert bank.auc_interval(0.997)[0] > 0.5
    private = attacked("privacy=sample", "privacy.sample.target_epsilon=2", "anomaly.dimension=8")
    assert private.auc_interval(0.997)[0] <= 0.5
