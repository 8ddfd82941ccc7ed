"""Audits of the real build: never a false alarm, every style, and what the command writes."""

from __future__ import annotations

import numpy as np
import pytest

from dp_fedmed.config import Config, compose
from dp_fedmed.errors import ConfigError
from dp_fedmed.evidence import canaries
from dp_fedmed.evidence.audit import (
    CanaryKind,
    Finding,
    Options,
    Verdict,
    audit,
    planned,
)
from dp_fedmed.evidence.audited_run import run_dirac
from dp_fedmed.evidence.findings import targets
from dp_fedmed.evidence.run_audit import audit_run
from dp_fedmed.privacy import compute_epsilon
from dp_fedmed.reporting.display import LogDisplay

FEW = 50  # releases, where it is the whole run that matters


def record_level(*overrides: str) -> Config:
    """Full batches, few steps: quick, and with as much signal as a claim allows."""
    return compose(
        [
            *("privacy=sample", "recipe=none", "privacy.sample.target_epsilon=null"),
            *("privacy.sample.noise_multiplier=4", "training.batch_size=100000"),
            *("training.local_steps=1", "federation.num_rounds=1", *overrides),
        ]
    )


def client_level(*overrides: str) -> Config:
    return compose(
        [
            *("privacy=user", "recipe=none", "privacy.user.target_epsilon=null"),
            *("privacy.user.noise_multiplier=4", "federation.num_rounds=3"),
            *("engine.workers=1", *overrides),
        ]
    )


def whole_run(config: Config, *, count: int, seed: int = 0, repeat: int = 1) -> Finding:
    """The attack on a whole run alone."""
    return audit_run(
        config,
        targets(config)[0],
        kind=CanaryKind.white_box,
        count=count,
        repeat=repeat,
        confidence=0.95,
        rng=np.random.default_rng(seed),
        on_start=lambda what, rounds: LogDisplay(),
    )


def test_a_correct_build_is_never_flagged() -> None:
    """Twenty audits of DP-SGD; the claim is about 1."""
    bounds, config = [], record_level()
    for seed in range(20):
        found = whole_run(config, count=1500, seed=seed)
        assert found.verdict is Verdict.consistent
        bounds.append(found.lower_bound)
    assert 0.05 < np.mean(bounds) < 0.6  # the canaries do carry a signal


@pytest.mark.parametrize(
    "overrides",
    [
        ["federation.sampler=poisson", "federation.sample_rate=0.5"],
        ["federation.sampler=fixed", "federation.sample_rate=0.5"],
        ["federation.sampler=all", "privacy.accountant=pld"],
        [
            *("privacy.user.clipping=adaptive", "federation.num_clients=200"),
            "privacy.user.max_grad_norm=0.01",
        ],
    ],
)
def test_client_level_audits_find_nothing(overrides: list[str]) -> None:
    assert (
        audit(client_level(*overrides), Options(count=200)).decisive.verdict is Verdict.consistent
    )
    little_noise = "privacy.user.noise_multiplier=0.5"
    for found in audit(client_level(*overrides, little_noise), Options(count=200)).findings:
        assert not found.verdict.is_finding
        assert found.scores[found.coins].mean() > found.scores[~found.coins].mean()


def test_hybrid_audits_both_units() -> None:
    words = ["privacy=hybrid", "recipe=none", "federation.num_rounds=2", "training.local_steps=1"]
    targets = ["privacy.user.target_epsilon=2", "engine.workers=1"]
    found = audit(compose([*words, *targets]), Options(count=120, trials=FEW, seed=3))
    content = found.to_json()
    assert [each["unit"] for each in content["findings"]] == [
        "record",
        "record",
        "client",
        "client",
    ]
    assert all(not each.verdict.is_finding for each in found.findings)
    claims = [each.claim for each in found.findings]
    assert claims == pytest.approx([3.0, 3.0, 2.0, 2.0], abs=0.05)  # the configuration's targets
    for level in ("sample", "user"):
        words += [f"privacy.{level}.target_epsilon=null", f"privacy.{level}.noise_multiplier=0.2"]
    options = Options(count=120, trials=FEW, seed=3)
    for each in audit(compose([*words, "engine.workers=1"]), options).findings:
        assert each.scores[each.coins].mean() > each.scores[~each.coins].mean()


def test_what_is_audited_is_what_the_configuration_plans() -> None:
    words = ["training.batch_size=8", "privacy.sample.noise_multiplier=2.5"]
    config = record_level(*words, "privacy.accountant=rdp")
    (target,) = targets(config)
    smallest = 370 // 5 - 370 // 5 // 10  # of five hospitals, without their validation records
    assert target.sample_rate == pytest.approx(8 / smallest, rel=0.05)
    assert (target.noise_multiplier, target.steps, target.rounds) == (2.5, 1, 1)
    outcome = run_dirac(config, target, np.ones(100, dtype=np.bool_), LogDisplay())
    expected = compute_epsilon(
        noise_multiplier=2.5,
        target_delta=target.delta,
        sample_rate=target.sample_rate,
        steps_per_round=1,
        num_rounds=1,
    )
    assert outcome.epsilon == pytest.approx(expected, rel=0.01)


def test_a_blank_record_moves_nothing_and_a_canary_its_own_weight() -> None:
    """Noise next to nothing: what is seen is the clipped sum, coordinate by coordinate."""
    config = record_level("privacy.sample.noise_multiplier=0.01", "privacy.sample.max_grad_norm=2")
    coins = np.arange(100) % 3 == 0
    outcome = run_dirac(config, targets(config)[0], coins, LogDisplay())
    assert np.allclose(outcome.scores * 100, np.where(coins, 2.0, 0.0), atol=0.15)


@pytest.mark.parametrize(
    ("overrides", "options", "said"),
    [
        (["privacy=none"], Options(), "privacy.style=none claims nothing"),
        (
            ["task=cells", "privacy=sample"],
            Options(kind=CanaryKind.black_box),
            "needs class labels",
        ),
        (
            ["privacy=user", "federation.sampler=fixed", "federation.sample_rate=0.5"],
            Options(kind=CanaryKind.black_box),
            "federation.sampler=poisson",
        ),
        (
            ["privacy=sample"],
            Options(kind=CanaryKind.black_box, count=900),
            "more than the data can give",
        ),
        (
            ["privacy=user", "federation.num_clients=8"],
            Options(kind=CanaryKind.black_box),
            "too few",
        ),
        (
            ["privacy=user", "privacy.user.clipping=adaptive", "federation.num_clients=5"],
            Options(),
            "privacy.user.clipping=adaptive",
        ),
    ],
)
def test_what_cannot_be_audited_is_refused(
    overrides: list[str], options: Options, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        planned(compose(overrides), options)


def test_the_canaries_data_set_is_not_for_runs() -> None:
    with pytest.raises(ConfigError, match="dp-fedmed audit"):
        canaries.load(compose([]).data, 0)
