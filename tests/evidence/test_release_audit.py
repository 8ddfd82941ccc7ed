"""The attack on one release: the network and loss of the configuration, and anomaly mechanisms.

The three errors that a network can bring are refused before training; here the checks are taken
away, so that the audit stands on its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dp_fedmed import cli
from dp_fedmed.config import Config, compose
from dp_fedmed.data import load_data
from dp_fedmed.evidence.audit import Finding, Verdict
from dp_fedmed.evidence.findings import targets
from dp_fedmed.evidence.one_release import Pair, Seen, attack
from dp_fedmed.evidence.release_audit import audit_release
from dp_fedmed.evidence.release_sources import attacked
from dp_fedmed.privacy import clip_l2_rows
from dp_fedmed.privacy.mechanisms import RecordSums, private_sum
from dp_fedmed.privacy.mechanisms.own_noise import OwnNoise
from tests.evidence.broken import unclipped, weaker_noise, without_checks
from tests.evidence.test_audit import client_level, record_level

Patch = pytest.MonkeyPatch
NETWORKS = "tests.evidence.broken"
TINY = ("task=textures", "data.num_records=60", "data.image_size=32", "anomaly.backbone=tiny")


def one_release(config: Config, *, unit: int = 0, trials: int = 300, seed: int = 0) -> Finding:
    return audit_release(
        config,
        targets(config)[unit],
        load_data(config.data, seed=config.seed),
        trials=trials,
        confidence=0.9999,  # noise is new in every run: a test must not need luck
        rng=np.random.default_rng(seed),
        on_start=lambda what, total: lambda: None,
    )


def anomaly(*overrides: str) -> Config:
    sigma = "privacy.sample.noise_multiplier=2"
    return compose(
        [*TINY, "privacy=sample", "privacy.sample.target_epsilon=null", sigma, *overrides]
    )


def own_network(name: str, mode: str, *overrides: str) -> Config:
    return record_level(
        f"allow_code=[{NETWORKS}]",
        f"model._target_={NETWORKS}.{name}",
        f"privacy.sample.grad_mode={mode}",
        *overrides,
    )


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("name", "mode"), [("Patches", "hooks"), ("Centred", "hooks"), ("Masked", "hooks")]
)
def test_what_a_network_does_to_the_bound_is_found(
    name: str, mode: str, seed: int, monkeypatch: Patch
) -> None:
    """Rows that are not records, records that move each other, masks by place in the batch."""
    without_checks(monkeypatch)
    found = one_release(own_network(name, mode), seed=seed)
    assert found.verdict is Verdict.exceeded, found.statement
    assert found.attacked["moved"] > 1.5
    assert found.attacked["network"] == f"{NETWORKS}.{name}"
    assert found.attacked["grad_mode"] == mode


@pytest.mark.parametrize("mode", ["hooks", "functorch"])
def test_the_real_build_stays_below_its_claim(mode: str) -> None:
    """With a canary that fills the bound: the search finds one, and no more is to be found."""
    for seed in range(2):
        found = one_release(record_level(f"privacy.sample.grad_mode={mode}"), seed=seed)
        assert found.verdict is Verdict.consistent, found.statement
        assert found.attacked["moved"] == pytest.approx(1.0, abs=1e-3)


def test_a_record_is_tried_under_other_weights_than_the_first() -> None:
    """A head that starts at zero hides the layers below it."""
    config = record_level()
    data = load_data(config.data, seed=config.seed)
    found = attacked(config, targets(config)[0], data, np.random.default_rng(0))
    weights = {
        scene.model[name].tobytes() for scene in found.sources for name in [*scene.model][:1]
    }
    assert len(weights) == len(found.sources) > 3


def test_a_record_that_moves_too_far_is_found_however_much_noise_hides_it(
    monkeypatch: Patch,
) -> None:
    without_checks(monkeypatch)
    loud = own_network("Masked", "hooks", "privacy.sample.noise_multiplier=30")
    found = one_release(loud, trials=50)
    assert found.verdict is Verdict.exceeded
    assert found.lower_bound < found.claim


def test_a_lucky_attack_is_not_taken_for_a_broken_build(monkeypatch: Patch) -> None:
    """At 95 % one correct build in twenty looks broken: an alarm needs releases of its own."""
    told: list[bool] = []

    def lucky_once(pair: Pair, trials: int, advance: Callable[[], None]) -> Seen:
        told.append(not told)
        if not told[-1]:
            return attack(pair, trials, advance)
        present = np.arange(trials) % 2 == 1
        return Seen(scores=present.astype(float), present=present)

    monkeypatch.setattr("dp_fedmed.evidence.release_audit.attack", lucky_once)
    found = one_release(record_level())
    assert found.verdict is Verdict.consistent, found.statement
    assert told == [True, False]


def test_a_bound_is_close_to_a_claim_that_just_holds() -> None:
    """σ = 1: what is shown is about half of what is claimed, with 0.9999 confidence."""
    found = one_release(record_level("privacy.sample.noise_multiplier=1"), trials=2000)
    assert found.verdict is Verdict.consistent
    assert 0.4 < found.lower_bound / found.claim < 1.0


@pytest.mark.parametrize(
    ("task", "network"), [("cells", "FilterBankSegmenter"), ("digits", "SmallCNN")]
)
def test_any_loss_and_shape_of_record_can_be_attacked(task: str, network: str) -> None:
    small = ["data.num_records=60", "data.image_size=16", "privacy.sample.max_grad_norm=0.1"]
    config = record_level(f"task={task}", f"model._target_=dp_fedmed.models.{network}", *small)
    found = one_release(config, trials=50)
    assert not found.verdict.is_finding
    assert found.attacked["network"] == f"dp_fedmed.models.{network}"
    assert found.attacked["loss"] == str(config.task.loss)
    assert found.attacked["moved"] == pytest.approx(1.0, abs=1e-3)


def silent_end(drawn: Any) -> Any:
    """The last two numbers, a bias, without noise."""
    drawn = drawn.copy()
    drawn[-2:] = 0.0
    return drawn


@pytest.mark.parametrize("change", [lambda drawn: drawn / 4.0, silent_end])
def test_too_little_noise_is_found(change: Callable[[Any], Any], monkeypatch: Patch) -> None:
    weaker_noise(monkeypatch, change)
    assert one_release(record_level(), trials=1000).verdict is Verdict.exceeded


@pytest.mark.parametrize("mode", ["hooks", "functorch"])
def test_no_clipping_is_found(mode: str, monkeypatch: Patch) -> None:
    unclipped(monkeypatch)
    found = one_release(record_level(f"privacy.sample.grad_mode={mode}"))
    assert found.verdict is Verdict.exceeded
    assert found.attacked["moved"] > 5.0


def test_less_noise_on_clients_is_found(monkeypatch: Patch) -> None:
    config = client_level("federation.sampler=all")
    honest = one_release(config, trials=1000)
    assert honest.verdict is Verdict.consistent
    assert honest.attacked["moved"] == pytest.approx(1.0, abs=1e-3)
    weaker_noise(monkeypatch, lambda drawn: drawn / 4.0)
    assert one_release(config, trials=1000).verdict is Verdict.exceeded


ANOMALIES = {
    "noise at the server": [],
    "noise at the clients": ["privacy.noise=client"],
    "prototypes": ["anomaly.mechanism=dp_prototypes"],
    "rows": ["anomaly.mechanism=noisy_rows"],
}


@pytest.mark.parametrize("overrides", ANOMALIES.values(), ids=ANOMALIES)
def test_anomaly_mechanisms_are_attacked(overrides: list[str], monkeypatch: Patch) -> None:
    config = anomaly(*overrides)
    honest = one_release(config)
    assert honest.verdict is Verdict.consistent, honest.statement
    assert 0.4 < honest.attacked["moved"] < 1.001
    weaker_noise(monkeypatch, lambda drawn: drawn / 4.0)
    assert one_release(config).verdict is Verdict.exceeded


def test_an_images_vector_without_its_bound_is_found(monkeypatch: Patch) -> None:
    def broken(rows: Any, *, max_norm: float) -> Any:
        return clip_l2_rows(30.0 * rows, max_norm=30.0 * max_norm)

    monkeypatch.setattr(private_sum, "clip_l2_rows", broken)
    found = one_release(anomaly("privacy.noise=client"))
    assert found.verdict is Verdict.exceeded
    assert found.attacked["moved"] > 5.0


@pytest.mark.parametrize("place", ["server", "shares"])
@pytest.mark.parametrize("style", ["sample", "hybrid"])
def test_one_noise_for_all_holds_for_every_unit(style: str, place: str) -> None:
    words = [f"privacy={style}", f"privacy.noise={place}", "federation.num_clients=20"]
    config = compose([*words, "training.local_steps=1", "training.batch_size=100000"])
    for unit in range(2 if style == "hybrid" else 1):
        found = one_release(config, unit=unit, trials=100)
        assert found.verdict is not Verdict.exceeded
        assert 0.5 < found.attacked["moved"] <= 1.001, "in units of what a unit may move"


def test_one_noise_that_is_too_small_is_found(monkeypatch: Patch) -> None:
    monkeypatch.setattr(RecordSums, "std", property(lambda self: 0.05 * self.max_norm))
    words = ["privacy=sample", "privacy.noise=server", "federation.num_clients=5"]
    config = compose([*words, "training.local_steps=1", "training.batch_size=100000"])
    assert one_release(config).verdict is Verdict.exceeded


def test_shares_of_which_there_are_too_few_are_found(monkeypatch: Patch) -> None:
    """As if 10 of 12 honest clients could be spared."""
    own = OwnNoise.own_std.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(OwnNoise, "own_std", property(lambda self: own(self) / 8.0))
    words = ["privacy=user", "privacy.noise=shares", "federation.num_clients=15"]
    assert one_release(compose(words)).verdict is Verdict.exceeded


def test_hybrid_anomalies_have_both_units() -> None:
    words = [*TINY, "privacy=hybrid", "privacy.user.target_epsilon=4", "anomaly.dimension=4"]
    config = compose([*words, "federation.num_clients=20"])
    for unit in (0, 1):
        assert one_release(config, unit=unit, trials=100).verdict is not Verdict.exceeded


def test_the_command_ends_with_3(
    tmp_path: Any, capsys: pytest.CaptureFixture, monkeypatch: Patch
) -> None:
    without_checks(monkeypatch)
    words = ["audit", "privacy=sample", f"allow_code=[{NETWORKS}]", "--trials", "300"]
    network = [f"model._target_={NETWORKS}.Patches", "privacy.sample.grad_mode=hooks"]
    rest = ["--canaries-count", "50", "--output", str(tmp_path), "federation.num_rounds=1"]
    assert cli.main([*words, *network, *rest]) == 3
    assert "does not hold with tests.evidence.broken.Patches" in capsys.readouterr().out
