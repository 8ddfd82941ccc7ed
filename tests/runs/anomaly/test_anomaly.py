"""Anomaly tasks as whole runs: the four styles, exact ε, bounded sums, resume, refusals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from dp_fedmed import crash_points
from dp_fedmed.assemble import detector_settings, make_learner, make_work, record_mechanism
from dp_fedmed.config import Config, compose
from dp_fedmed.data import DataSet, Records, load_data, partition
from dp_fedmed.errors import ConfigError
from dp_fedmed.federation.messages import RecordOrder
from dp_fedmed.federation.rounds import RoundRecord
from dp_fedmed.launch import run_federation
from dp_fedmed.learning import LocalRound
from dp_fedmed.learning.anomaly.learner import AnomalyWork
from dp_fedmed.learning.anomaly.steps import VECTOR, StatisticStep
from dp_fedmed.privacy import PrivacyEvent, get_privacy_spent
from dp_fedmed.privacy.mechanisms.base import add
from dp_fedmed.privacy.mechanisms.record_sums import RecordSums
from dp_fedmed.privacy.streams.noise import NoiseKey, NoiseStream
from dp_fedmed.privacy.streams.rounds import RoundStreams
from dp_fedmed.reporting.display import LogDisplay
from dp_fedmed.run import server_run
from dp_fedmed.run.spent import CHARGE, COMMIT, RELEASE
from dp_fedmed.run.verify import LedgerView
from dp_fedmed.site import runtime
from tests.conftest import without_privacy_unless_given
from tests.runs.anomaly.runs import FIXED_NOISE, Crash, CrashAt, report_of

EVERYONE = ("federation.sampler=all", "federation.sample_rate=1.0")
STYLES = ("none", "sample", "user", "hybrid")


def releases(run_dir: Path) -> list[np.ndarray]:
    files = sorted((run_dir / "private" / "releases").glob("charge_*.safetensors"))
    return [load_file(file)[VECTOR] for file in files]


def without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NoiseStream, "normal", lambda self, shape, *, std: np.zeros(shape))


@pytest.mark.usefixtures("with_sheets")
@pytest.mark.parametrize("style", STYLES)
def test_every_style_runs_to_its_end_and_leaves_its_files(
    style: str, tiny: Callable[..., Config]
) -> None:
    result = run_federation(tiny(f"privacy={style}"))
    assert (result.stopped, result.rounds) == ("completed", 1 if style == "none" else 2)
    assert {"image_auroc", "pixel_auroc", "aupro_0.3", "image_auroc/metal"} <= result.test.keys()
    assert {"image_auroc/worst", "image_auroc/gap", "image_auroc/jain"} <= result.test.keys()
    assert set(result.val) == {"threshold"}, "normal images have no AUROC"
    assert (result.run_dir / "pictures.png").stat().st_size > 1000
    model = load_file(result.run_dir / "model.safetensors")
    assert model["map_matrix"].shape == (24, 6)
    if style == "none":
        assert model["bank"].shape == (30, 6)
        assert report_of(result.run_dir)["guarantees"] == []
    else:
        assert model["step"].tolist() == [2]
        outside = " ".join(report_of(result.run_dir)["outside_the_guarantee"])
        assert "threshold" in outside
        assert "pictures.png" in outside
    assert not list(LedgerView(result.run_dir).problems())


@pytest.mark.parametrize("mechanism", ["dp_gaussian", "dp_prototypes"])
@pytest.mark.parametrize("place", ["server", "client"])
def test_images_cost_two_full_releases(
    mechanism: str, place: str, tiny: Callable[..., Config]
) -> None:
    words = (f"anomaly.mechanism={mechanism}", f"privacy.noise={place}")
    result = run_federation(tiny("privacy=sample", *FIXED_NOISE, *words))
    assert result.stopped == "completed"
    report = report_of(result.run_dir)
    (guarantee,) = report["guarantees"]
    by_hand = get_privacy_spent(
        noise_multiplier=3.0, sample_rate=1.0, steps=2, delta=guarantee["delta"]
    )
    assert guarantee["epsilon"] == by_hand
    assert guarantee["unit"] == "record"
    assert guarantee["sampling"] == "every image in every round"
    charges = [r for r in LedgerView(result.run_dir).ledger.records if r.kind == CHARGE]
    events = [entry["event"] for charge in charges for entry in charge.body["clients"]]
    assert {(e["sampling"], e["noise_multiplier"], e["count"]) for e in events} == {
        ("full", 3.0, 1)
    }


def test_clients_and_images_are_accounted_each_with_its_own_noise(
    tiny: Callable[..., Config],
) -> None:
    words = (*FIXED_NOISE, "federation.sample_rate=0.5")
    for style in ("user", "hybrid"):
        found = report_of(run_federation(tiny(f"privacy={style}", *words)).run_dir)["guarantees"]
        by_unit = {g["unit"]: g for g in found}
        client = by_unit["client"]
        assert client["epsilon"] == get_privacy_spent(
            noise_multiplier=2.0, sample_rate=0.5, steps=2, delta=client["delta"]
        )
        assert ("record" in by_unit) is (style == "hybrid")
    record = by_unit["record"]
    assert record["epsilon"] == get_privacy_spent(
        noise_multiplier=3.0, sample_rate=1.0, steps=2, delta=record["delta"]
    )
    assert record["noise_added_by"] == "each client"


def test_a_trusted_server_is_promised_nothing(tiny: Callable[..., Config]) -> None:
    promised = {}
    for place in ("server", "client"):
        words = ("privacy=sample", f"privacy.noise={place}")
        report = report_of(run_federation(tiny(*words)).run_dir)
        promised[place] = {row["observer"]: row["record"] for row in report["observers"]}
        assert ("server is trusted" in report["trust_boundary"]) is (place == "server")
    assert promised["server"]["server"] is None
    assert promised["server"]["model recipients"]["epsilon"] <= 3.0
    assert promised["client"]["server"] == promised["client"]["model recipients"]


def test_a_trusted_servers_sums_are_charged_then_released_then_committed(
    tiny: Callable[..., Config],
) -> None:
    folder = run_federation(tiny("privacy=sample", "privacy.noise=server")).run_dir
    kinds = [record.kind for record in LedgerView(folder).ledger.records]
    rounds = [kind for kind in kinds if kind in (CHARGE, RELEASE, COMMIT)]
    assert rounds == [COMMIT, *2 * (CHARGE, RELEASE, COMMIT)]
    folder = run_federation(tiny("privacy=sample", "privacy.noise=client")).run_dir
    assert RELEASE not in [record.kind for record in LedgerView(folder).ledger.records]


def test_what_is_released_is_the_mean_over_all_images_of_all_clients(
    tiny: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    without_noise(monkeypatch)
    config = tiny("privacy=sample", "privacy.noise=server", "data.partition.name=size_skewed")
    first, second = releases(run_federation(config).run_dir)
    data = load_data(config.data, seed=config.seed)
    learner = make_learner(config, data)
    work = make_work(config)
    alone = replace_style(config)
    received = learner.initial()
    for released in (first, second):
        mine = LocalRound(name="all", server_round=1, received=received, records=data.train)
        answer, _ = make_work(alone).train(mine)
        assert np.allclose(answer[VECTOR], released, atol=1e-12)
        received = StatisticStep(work.detector, 0.0).step(received, answer)  # type: ignore[attr-defined]


def replace_style(config: Config) -> Config:
    """The same statistic with nobody's noise."""
    user = compose(["privacy=user"]).privacy
    return replace(config, privacy=user)


def changed_data(data: DataSet, positions: np.ndarray, image: str) -> DataSet:
    """The same data with other images at these positions."""
    x = data.train.x.copy()
    rng = np.random.default_rng(5)
    x[positions] = {
        "black": np.zeros_like(x[positions]),
        "white": np.full_like(x[positions], 255),
        "noise": rng.integers(0, 256, x[positions].shape, dtype=np.uint8),
    }[image]
    return replace(data, train=Records(x, data.train.y, data.train.site))


def released_for(
    config: Config, data: DataSet, monkeypatch: pytest.MonkeyPatch
) -> list[np.ndarray]:
    """Both exact sums of a run, over what they are divided by.

    The state between them is the same whatever the data: the bound is on a step with a given state.
    """
    real = StatisticStep.step

    def public_step(self, model, combined):  # type: ignore[no-untyped-def]
        return real(self, model, {VECTOR: np.full_like(combined[VECTOR], 0.05)})

    with monkeypatch.context() as patch:
        without_noise(patch)
        patch.setattr(StatisticStep, "step", public_step)
        for module in (server_run, runtime):
            patch.setattr(module, "load_data", lambda *_, **__: data)
        return releases(run_federation(config).run_dir)


@pytest.mark.parametrize("mechanism", ["dp_gaussian", "dp_prototypes"])
@pytest.mark.parametrize("image", ["black", "white", "noise"])
def test_one_image_moves_the_federations_sum_by_two_at_most(
    mechanism: str,
    image: str,
    tiny: Callable[..., Config],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Replacing is removing and adding, so twice the bound of 1 that is accounted."""
    words = ("privacy=sample", "privacy.noise=server", f"anomaly.mechanism={mechanism}")
    config, other = tiny(*words), tiny(*words)
    data = load_data(config.data, seed=config.seed)
    count = len(data.train)
    before = released_for(config, data, monkeypatch)
    after = released_for(other, changed_data(data, np.array([0]), image), monkeypatch)
    moved = [count * float(np.linalg.norm(b - a)) for a, b in zip(before, after, strict=True)]
    assert len(moved) == 2
    assert all(1e-3 < distance <= 2.0 + 1e-9 for distance in moved), moved


def test_one_client_moves_the_sum_over_clients_by_two_at_most(
    tiny: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("privacy=user", *EVERYONE, "data.partition.name=size_skewed")
    config, other = tiny(*words), tiny(*words)
    data = load_data(config.data, seed=config.seed)
    largest = partition(data, config.data.partition, num_clients=4, seed=config.seed)[-1]
    assert len(largest) > len(data.train) / 4
    before = released_for(config, data, monkeypatch)
    after = released_for(other, changed_data(data, largest, "white"), monkeypatch)
    for a, b in zip(before, after, strict=True):
        assert 1e-3 < 4 * float(np.linalg.norm(b - a)) <= 2.0 + 1e-9


def test_a_client_that_sends_more_than_its_images_can_sum_to_counts_nothing() -> None:
    event = PrivacyEvent.full(unit="record", noise_multiplier=1e-2)
    mechanism = RecordSums(event, records={"a": 10, "b": 30})
    total = mechanism.empty({VECTOR: np.zeros(3)})
    unit = int(1 / mechanism.sums.grid.step)
    add(total, mechanism.bound({VECTOR: np.array([11 * unit, 0, 0])}, client="a"))
    add(total, mechanism.bound({VECTOR: np.array([0, 11 * unit, 0])}, client="b"))
    streams = RoundStreams(NoiseKey.generate(), "run", 1, b"\0" * 32)
    assert np.allclose(mechanism.release(total, streams)[VECTOR], [0, 11 / 40, 0], atol=0.01)


def test_the_servers_noise_has_the_scale_that_is_charged(
    tiny: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("privacy=sample", "privacy.noise=server", *FIXED_NOISE, "anomaly.dimension=24")
    noisy, exact = tiny(*words), tiny(*words)
    count = len(load_data(noisy.data, seed=noisy.seed).train)
    first = releases(run_federation(noisy).run_dir)[0]
    without_noise(monkeypatch)
    noise = count * (first - releases(run_federation(exact).run_dir)[0])
    assert 3.0 * 0.6 < noise.std() < 3.0 * 1.4, "24 values of standard deviation 3"


@pytest.mark.parametrize("style", ["sample", "hybrid"])
def test_a_clients_own_noise_has_the_scale_that_is_charged(
    style: str, tiny: Callable[..., Config]
) -> None:
    config = tiny(f"privacy={style}", "anomaly.dimension=24")
    data = load_data(config.data, seed=config.seed)
    received = make_learner(config, data).initial()
    work = make_work(config)
    work.build(data.input_shape, data.num_classes)
    order = RecordOrder(noise_multiplier=5.0, sample_rate=1.0, steps=1, grad_mode="auto")
    n = len(data.train)
    exact = LocalRound(name="a", server_round=1, received=received, records=data.train)
    streams = RoundStreams(NoiseKey.generate(), "run", 1, b"\0" * 32, client="a")
    noised = replace(exact, mechanism=record_mechanism(config, order, n), streams=streams)
    mean = work.train(exact)[0][VECTOR]
    assert np.linalg.norm(mean) <= 1.0
    noise = n * (work.train(noised)[0][VECTOR] - mean)
    assert 5.0 * 0.6 < noise.std() < 5.0 * 1.4
    again = work.train(noised)[0][VECTOR]
    assert np.array_equal(n * (again - mean), noise), "the same question has the same answer"


def test_a_client_does_not_answer_a_server_that_counts_on_other_features(
    tiny: Callable[..., Config],
) -> None:
    config = tiny("privacy=sample")
    order = make_learner(config, load_data(config.data, seed=config.seed)).order()
    work = make_work(config)
    work.build((3, 32, 32), 4)
    work.agree(order)
    with pytest.raises(ConfigError, match="sample_rate"):
        record_mechanism(
            config,
            RecordOrder(noise_multiplier=5.0, sample_rate=0.5, steps=1, grad_mode="auto"),
            10,
        )
    other = make_work(tiny("privacy=sample", "seed=1"))  # seeds decide random weights
    other.build((3, 32, 32), 4)
    with pytest.raises(ConfigError, match=r"same anomaly\.weights"):
        other.agree(order)


def test_a_bank_holds_patches_of_clients(tiny: Callable[..., Config]) -> None:
    config = tiny("privacy=none")
    model = load_file(run_federation(config).run_dir / "model.safetensors")
    data = load_data(config.data, seed=config.seed)
    learner = make_learner(config, data)
    from dp_fedmed.learning.anomaly.detector import Detector

    detector = Detector(detector_settings(config))
    rows = detector.map_of(learner.initial())(detector.features(data.train.x)).reshape(-1, 6)
    nearest = ((model["bank"][:, None] - rows[None]) ** 2).sum(axis=2).min(axis=1)
    assert nearest.max() < 1e-9
    assert len(np.unique(model["bank"], axis=0)) == 30


def test_a_client_with_few_patches_repeats_them(tiny: Callable[..., Config]) -> None:
    words = ("anomaly.grid=2", "anomaly.coreset_size=200", "anomaly.neighbours=0")
    result = run_federation(tiny("privacy=none", *words))
    assert result.stopped == "completed"
    assert load_file(result.run_dir / "model.safetensors")["bank"].shape == (200, 6)


CRASHES = [
    ("none", "checkpoint:renamed", 2),
    ("sample", "training:before", 2),
    ("sample", "release:before", 2),
    ("sample", "release:file", 1),
    ("sample", "release:after", 2),
    ("sample", "commit:before", 2),
    ("noisy_rows", "training:before", 1),
    ("noisy_rows", "commit:before", 1),
    ("user", "release:file", 2),
    ("hybrid", "release:file", 1),
    ("hybrid", "commit:before", 2),
]


@pytest.mark.parametrize(("style", "point", "number"), CRASHES)
def test_a_run_that_crashed_ends_as_one_that_did_not(
    style: str,
    point: str,
    number: int,
    tiny: Callable[..., Config],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = (f"privacy={style}", *(() if style == "none" else ("privacy.noise_seed=1",)))
    if style == "noisy_rows":
        words = ("privacy=sample", "anomaly.mechanism=noisy_rows", "privacy.noise_seed=1")
    elif style == "sample":
        words = (*words, "privacy.noise=server")
    whole, broken = tiny(*words), tiny(*words)
    run_federation(whole)
    with monkeypatch.context() as patch:
        patch.setattr(crash_points, "at_crash_point", CrashAt(point, number))
        with pytest.raises(Crash):
            run_federation(broken)
    result = run_federation(compose([f"run_dir={broken.run_dir}", "resume=last"]))
    assert result.stopped == "completed"
    outcomes = []
    for folder in (Path(whole.run_dir), Path(broken.run_dir)):
        view = LedgerView(folder)
        charges = [r.body["round"] for r in view.ledger.records if r.kind == CHARGE]
        outcomes.append(
            {
                "model": (folder / "model.safetensors").read_bytes(),
                "epsilon": view.epsilons(),
                "charges": charges,
                "problems": list(view.problems()),
                "report": report_of(folder),
            }
        )
    assert outcomes[0] == outcomes[1]


def test_what_was_released_is_taken_from_disk_and_nobody_is_asked_again(
    tiny: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny("privacy=sample", "privacy.noise=server")
    with monkeypatch.context() as patch:
        patch.setattr(crash_points, "at_crash_point", CrashAt("release:file", 2))
        with pytest.raises(Crash):
            run_federation(config)
    held = releases(Path(config.run_dir))
    monkeypatch.setattr(AnomalyWork, "train", lambda *_: pytest.fail("a client was asked"))
    result = run_federation(compose([f"run_dir={config.run_dir}", "resume=last"]))
    assert (result.stopped, result.rounds) == ("completed", 2)
    assert all(map(np.array_equal, held, releases(result.run_dir)))


class Stopper(LogDisplay):
    """Presses Ctrl-C after a round."""

    def round(self, record: RoundRecord) -> None:
        if record.server_round == 1:
            raise KeyboardInterrupt


def test_what_a_statistic_is_cannot_change_on_the_way(tiny: Callable[..., Config]) -> None:
    path = run_federation(tiny("privacy=sample", "privacy.noise=server"), Stopper()).run_dir
    for word in (
        *("privacy.noise=client", "anomaly.dimension=5"),
        *("anomaly.mechanism=dp_prototypes", "federation.num_rounds=4"),
    ):
        with pytest.raises(ConfigError, match=word.split("=")[0]):
            run_federation(compose([f"run_dir={path}", "resume=last", word, "new_phase=true"]))
    assert run_federation(compose([f"run_dir={path}", "resume=last"])).stopped == "completed"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["federation.num_rounds=3"],
            r"num_rounds=3.*takes federation\.num_rounds=1",
        ),
        (["privacy=sample", "federation.num_rounds=1"], r"dp_gaussian takes.*num_rounds=2"),
        (["privacy=sample", "federation.max_participations=1"], r"max_participations=2 or null"),
        (["anomaly.backbone=resnet"], r"anomaly\.backbone=resnet is not known.*resnet18"),
        (["anomaly.coreset_size=1"], r"anomaly\.coreset_size=1 is out of range"),
        (["task.metric=dice"], r"task\.metric=dice.*image_auroc"),
        (
            ["federation.server_optimizer=fedadam"],
            r"takes federation\.server_optimizer=fedavg",
        ),
        (["privacy=user", "privacy.user.clipping=adaptive"], r"use privacy\.user\.clipping=fixed"),
        (["privacy=sample", "privacy.sample.max_grad_norm=2"], r"privacy\.sample\.max_grad_norm=1"),
    ],
)
def test_a_setting_that_cannot_be_right_is_answered_with_one_that_works(
    words: list[str], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        compose(["task=textures", *without_privacy_unless_given(words), *words])


def test_data_and_dimensions_that_do_not_fit_are_refused(tiny: Callable[..., Config]) -> None:
    with pytest.raises(ConfigError, match=r"anomaly\.dimension=25 is more than the 24 channels"):
        run_federation(tiny("anomaly.dimension=25"))
    with pytest.raises(ConfigError, match=r"task\.kind=anomaly learns from normal images"):
        run_federation(tiny("data.name=cells"))
    with pytest.raises(ConfigError, match=r"task\.kind=anomaly does not fit"):
        run_federation(tiny("data.name=digits"))


def test_a_plan_that_is_mostly_noise_says_how_many_clients_it_needs(
    tiny: Callable[..., Config], caplog: pytest.LogCaptureFixture
) -> None:
    run_federation(tiny("privacy=user", *FIXED_NOISE, *EVERYONE))
    (warning,) = [r.getMessage() for r in caplog.records if "needs about" in r.getMessage()]
    assert "needs about 24 clients" in warning, "2·d·σ with d=6 and σ=2"
    assert "a round has 4" in warning
