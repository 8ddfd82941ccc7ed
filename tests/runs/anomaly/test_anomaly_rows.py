"""Rows instead of sums: `noisy_rows` as a whole run, and banks whose size is a share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from dp_fedmed.assemble import detector_settings, make_learner, make_work, record_mechanism
from dp_fedmed.config import Config, compose
from dp_fedmed.data import Records, load_data
from dp_fedmed.errors import BudgetRefused, ConfigError
from dp_fedmed.federation.messages import RecordOrder
from dp_fedmed.launch import run_federation
from dp_fedmed.learning import LocalRound
from dp_fedmed.learning.anomaly.detector import BANK, Detector
from dp_fedmed.learning.anomaly.steps import NoisyRowsStep
from dp_fedmed.privacy import gaussian_epsilon, get_privacy_spent
from dp_fedmed.privacy.streams.keys import MacKey
from dp_fedmed.privacy.streams.noise import NoiseKey, NoiseStream
from dp_fedmed.privacy.streams.rounds import RoundStreams
from dp_fedmed.run.spent import CHARGE, RELEASE
from dp_fedmed.run.verify import LedgerView
from dp_fedmed.site.ledger import Asked, Budget, ClientLedger
from tests.conftest import without_privacy_unless_given
from tests.runs.anomaly.runs import FIXED_NOISE, report_of

ROWS = ("privacy=sample", "anomaly.mechanism=noisy_rows")


def answer(config: Config, records: Records, sigma: float, client: str = "a") -> np.ndarray:
    """What a client of this configuration sends, with streams that depend on nothing else."""
    data = load_data(config.data, seed=config.seed)
    work = make_work(config)
    work.build(data.input_shape, data.num_classes)
    order = RecordOrder(noise_multiplier=sigma, sample_rate=1.0, steps=1, grad_mode="auto")
    mine = LocalRound(
        name=client,
        server_round=1,
        received=make_learner(config, data).initial(),
        records=records,
        mechanism=record_mechanism(config, order, len(records)),
        streams=RoundStreams(NoiseKey.from_public_seed(3), "run", 1, b"\0" * 32, client=client),
    )
    return work.train(mine)[0][BANK]


@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("image", ["black", "white", "noise"])
def test_replacing_one_image_moves_what_a_client_sends_by_two_root_m_at_most(
    m: int, image: str, tiny: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noise off: the real client, the real choice of rows, one image replaced."""
    monkeypatch.setattr(NoiseStream, "normal", lambda self, shape, *, std: np.zeros(shape))
    records = load_data(tiny().data, seed=0).train
    size = m * len(records)
    config = tiny(*ROWS, f"anomaly.rows_per_image={m}", f"anomaly.coreset_size={size}")
    x = records.x.copy()
    x[5] = {
        "black": np.zeros_like(x[5]),
        "white": np.full_like(x[5], 255),
        "noise": np.random.default_rng(5).integers(0, 256, x[5].shape, dtype=np.uint8),
    }[image]
    before = answer(config, records, 3.0).astype(np.float64)
    after = answer(config, Records(x, records.y, records.site), 3.0).astype(np.float64)
    assert np.linalg.norm(before, axis=1).max() <= 1.0
    assert 1e-3 < np.linalg.norm(after - before) <= 2.0 * np.sqrt(m)
    assert (after != before).any(axis=1).sum() <= m


def test_rows_cost_one_release_for_a_replaced_image(tiny: Callable[..., Config]) -> None:
    result = run_federation(tiny(*ROWS, *FIXED_NOISE))
    assert (result.stopped, result.rounds) == ("completed", 1)
    report = report_of(result.run_dir)
    (guarantee,) = report["guarantees"]
    half = get_privacy_spent(
        noise_multiplier=1.5, sample_rate=1.0, steps=1, delta=guarantee["delta"]
    )
    assert guarantee["epsilon"] == half, "a replacement moves the rows by 2C√m"
    assert guarantee["epsilon"] >= gaussian_epsilon(noise_multiplier=1.5, delta=guarantee["delta"])
    assert (guarantee["adjacency"], guarantee["noise_added_by"]) == ("replace_one", "each client")
    promised = {row["observer"]: row["record"] for row in report["observers"]}
    assert promised["server"] == promised["model recipients"]
    view = LedgerView(result.run_dir)
    assert not list(view.problems())
    assert view.epsilons()["sample"] == half
    kinds = [record.kind for record in view.ledger.records]
    assert kinds.count(CHARGE) == 1
    assert RELEASE not in kinds
    (charge,) = [record for record in view.ledger.records if record.kind == CHARGE]
    events = [entry["event"] for entry in charge.body["clients"]]
    assert {(e["adjacency"], e["noise_multiplier"]) for e in events} == {("replace_one", 3.0)}


def test_the_target_is_met_and_the_noise_is_on_the_rows(tiny: Callable[..., Config]) -> None:
    config = tiny(*ROWS, "privacy.sample.target_epsilon=2.0")
    report = report_of(run_federation(config).run_dir)
    (guarantee,) = report["guarantees"]
    assert 1.9 < guarantee["epsilon"] <= 2.0
    sigma = next(iter(guarantee["clients"].values()))["noise_multiplier"]
    records = load_data(config.data, seed=config.seed).train
    wide = tiny(
        *ROWS, "anomaly.dimension=24", "anomaly.coreset_size=39", "anomaly.rows_per_image=1"
    )
    assert answer(wide, records, sigma).std() == pytest.approx(sigma, rel=0.15)


def test_a_clients_own_budget_counts_replacements(
    tiny: Callable[..., Config], tmp_path: Path
) -> None:
    ledger = ClientLedger(tmp_path, "a", MacKey.generate(), durable=False)
    order = RecordOrder(noise_multiplier=4.0, sample_rate=1.0, steps=1, grad_mode="auto")
    mechanism = record_mechanism(tiny(*ROWS), order, 39)
    asked = Asked(run="r", phase=0, server_round=1, ledger=1, digest="00", data="d")
    spent = get_privacy_spent(noise_multiplier=2.0, sample_rate=1.0, steps=1, delta=1e-5)
    with pytest.raises(BudgetRefused):
        ledger.charge(asked, mechanism, Budget(0.99 * spent, 1e-5, "rdp"))
    ledger.charge(asked, mechanism, Budget(1.01 * spent, 1e-5, "rdp"))


def test_the_bank_of_noisy_rows_holds_the_rows_of_all_clients(tiny: Callable[..., Config]) -> None:
    config = tiny(*ROWS, "anomaly.coreset_size=100")
    model = load_file(run_federation(config).run_dir / "model.safetensors")
    assert model[BANK].shape == (100, 6)
    assert len(np.unique(model[BANK], axis=0)) == 39, "one row of each image of four clients"
    step, union = NoisyRowsStep(0), np.arange(60, dtype=np.float32).reshape(30, 2)
    collector = step.collector({BANK: np.zeros((10, 2), np.float32)})
    for part in np.split(union, 3):
        collector.add({BANK: part}, 10)
    chosen = collector.result()
    assert chosen is not None
    assert len(np.unique(chosen[BANK], axis=0)) == 10


def test_weakness_is_said_before_anything_is_spent(
    tiny: Callable[..., Config], caplog: pytest.LogCaptureFixture
) -> None:
    run_federation(tiny(*ROWS))
    assert [r for r in caplog.records if "noisy_rows is weak" in r.getMessage()]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["privacy=user", "federation.num_rounds=1", "{rows}"], r"rows of clients do not add up"),
        (["privacy=hybrid", "federation.num_rounds=1", "{rows}"], r"use anomaly\.mechanism=dp_g"),
        (
            ["privacy=sample", "{rows}", "federation.num_rounds=2"],
            r"noisy_rows takes.*rounds=1",
        ),
        (
            ["privacy=sample", "{rows}", "data_ledger=/x/y.jsonl", "data.id=tiles"],
            r"a record that is replaced: the two do not compose",
        ),
        (["anomaly.rows_per_image=2"], r"rows_per_image=2 is for anomaly\.mechanism=noisy_rows"),
        (["privacy=sample", "{rows}", "anomaly.rows_per_image=0"], r"rows_per_image=0 is out of"),
        (
            ["anomaly.coreset_ratio=0.1"],
            r"coreset_size=1000 with .*ratio=0\.1: give",
        ),
        (
            ["anomaly.coreset_size=null"],
            r"coreset_size=null with .*ratio=null: give",
        ),
        (["anomaly.coreset_size=null", "anomaly.coreset_ratio=1.5"], r"from 1e-06 to 1"),
        (["anomaly.coreset_size=null", "anomaly.coreset_ratio=nan"], r"not a finite number"),
    ],
)
def test_a_setting_that_cannot_be_right_is_answered_with_one_that_works(
    words: list[str], says: str
) -> None:
    filled = [word.format(rows="anomaly.mechanism=noisy_rows") for word in words]
    with pytest.raises(ConfigError, match=says):
        compose(["task=textures", *without_privacy_unless_given(filled), *filled])


@pytest.mark.parametrize("style", ["none", "noisy_rows"])
def test_a_bank_may_be_a_share_of_all_patches(style: str, tiny: Callable[..., Config]) -> None:
    words = ("anomaly.coreset_size=null", "anomaly.coreset_ratio=0.01")
    result = run_federation(tiny(*words, *(ROWS if style == "noisy_rows" else ())))
    bank = load_file(result.run_dir / "model.safetensors")[BANK]
    assert result.stopped == "completed"
    assert len(bank) == 25, "1 % of 39 images of 64 patches, rounded up"


def test_a_bank_of_all_patches_holds_all_patches(tiny: Callable[..., Config]) -> None:
    words = ("anomaly.coreset_size=null", "anomaly.coreset_ratio=1.0", "anomaly.grid=2")
    config = tiny(*words)
    bank = load_file(run_federation(config).run_dir / "model.safetensors")[BANK]
    data = load_data(config.data, seed=config.seed)
    detector = Detector(detector_settings(config))
    rows = detector.map_of(detector.initial(data.input_shape, 1))(detector.features(data.train.x))
    assert len(np.unique(bank, axis=0)) == len(np.unique(rows.reshape(-1, 6), axis=0))
