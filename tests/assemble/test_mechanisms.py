"""From settings to objects: which mechanism protects what, and what a client refuses."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from dp_fedmed.assemble import (
    Assembly,
    client_runtime,
    detector_settings,
    own_answer,
    record_mechanism,
    server_mechanism,
    server_step,
)
from dp_fedmed.config import Config, compose
from dp_fedmed.data import load_data
from dp_fedmed.errors import ConfigError
from dp_fedmed.federation.messages import RecordOrder, RoundOrder
from dp_fedmed.federation.plan import PrivacyPlan
from dp_fedmed.federation.server_optimizer import ServerOptimizer
from dp_fedmed.learning.anomaly.detector import BANK_MECHANISM
from dp_fedmed.learning.anomaly.steps import BankStep, NoisyRowsStep
from dp_fedmed.planning.plan import make_plan, make_sampler, round_shape
from dp_fedmed.privacy.mechanisms import (
    DPSGD,
    AdaptiveClientUpdates,
    ClientUpdates,
    NoisyRows,
    RecordSums,
    StatisticMean,
)

NAMES = {"a": 120, "b": 80}
MANY = ("federation.num_clients=200", "privacy.user.target_epsilon=20")
FULL = ("training.batch_size=100000", "training.local_steps=1")
ROWS = ("task=textures", "privacy=sample", "anomaly.mechanism=noisy_rows")


def planned(config: Config) -> PrivacyPlan:
    records = NAMES if config.privacy.style.protects_records else {}
    return make_plan(config, records=records, sampler=make_sampler(config), is_private=True)


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["privacy=sample"], None),
        (["privacy=user", *MANY], ClientUpdates),
        (["privacy=user", *MANY, "privacy.user.clipping=adaptive"], AdaptiveClientUpdates),
        (["privacy=hybrid", *MANY], ClientUpdates),
        (["privacy=hybrid", *MANY, "privacy.user.clipping=adaptive"], AdaptiveClientUpdates),
        (["privacy=sample", "federation=local_only"], None),
        (["privacy=sample", "privacy.noise=server"], RecordSums),
        (["privacy=hybrid", "privacy.noise=server", *MANY], RecordSums),
        (["task=textures", "privacy=sample", "privacy.noise=server"], RecordSums),
        (["task=textures", "privacy=sample"], None),
        (["task=textures", "privacy=user", *MANY], ClientUpdates),
        (["task=textures", "privacy=sample", "federation=local_only"], None),
        (list(ROWS), None),
    ],
)
def test_the_server_noises_what_the_style_leaves_to_it(
    words: list[str], kind: type[object] | None
) -> None:
    config = compose(words)
    plan, sampler = planned(config), make_sampler(config)
    made = server_mechanism(config, plan, sampler)
    assert type(made) is (type(None) if kind is None else kind)
    if isinstance(made, RecordSums):
        assert made.expected_cohort == sum(NAMES.values())
        assert {made.record_noise} == {c.noise_multiplier for c in plan.clients.values()}
        assert made.event == (plan.user_event or plan.clients[next(iter(NAMES))].round_event)
        assert made.std >= made.record_noise * made.max_norm
        if plan.user_event is not None:
            user = config.privacy.user.max_grad_norm
            assert made.client_norm == user
            assert made.std >= plan.user_event.noise_multiplier * user
    elif isinstance(made, ClientUpdates):
        assert made.event == plan.user_event, "what is noised is what is charged"
        assert made.max_norm == config.privacy.user.max_grad_norm
        assert made.expected_cohort == sampler.expected(config.num_sites)


def test_adaptive_clipping_has_the_settings_of_the_configuration() -> None:
    words = ["privacy.user.clipping=adaptive", "privacy.user.target_quantile=0.25"]
    config = compose(["privacy=user", *MANY, *words, "privacy.user.clip_lr=0.5"])
    made = server_mechanism(config, planned(config), make_sampler(config))
    assert isinstance(made, AdaptiveClientUpdates)
    assert (made.quantile, made.learning_rate) == (0.25, 0.5)


def ordered(config: Config, records: int = 120, **changes: object) -> RecordOrder:
    q, steps = round_shape(config, records)
    given = {"noise_multiplier": 1.5, "sample_rate": q, "steps": steps, "grad_mode": "hooks"}
    return RecordOrder(**{**given, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["privacy=sample"], DPSGD),
        (["privacy=hybrid"], DPSGD),
        (["task=textures", "privacy=sample"], StatisticMean),
        (list(ROWS), NoisyRows),
    ],
)
def test_a_client_protects_its_records_as_it_was_asked(words: list[str], kind: type) -> None:
    config = compose(words)
    order = ordered(config)
    made = record_mechanism(config, order, 120)
    assert type(made) is kind
    assert (made.noise_multiplier, made.sample_rate, made.steps) == (
        order.noise_multiplier,
        order.sample_rate,
        order.steps,
    )
    assert made.adjacency == ("replace_one" if kind is NoisyRows else "zero_out")


def test_who_adds_a_statistics_noise_and_what_bounds_a_gradient_is_the_clients_own() -> None:
    for by in ("server", "client"):
        words = ["task=textures", "privacy=sample", f"privacy.noise={by}"]
        config = compose(words)
        made = record_mechanism(config, ordered(config), 120)
        assert isinstance(made, StatisticMean)
        assert (made.noised_by, made.records) == (by, 120)
    config = compose(["privacy=sample", "privacy.sample.max_grad_norm=0.3"])
    made = record_mechanism(config, ordered(config, grad_mode="functorch"), 120)
    assert isinstance(made, DPSGD)
    assert (made.max_grad_norm, made.grad_mode) == (0.3, "functorch")
    rows = compose([*ROWS, "anomaly.rows_per_image=3"])
    noisy = record_mechanism(rows, ordered(rows), 120)
    assert isinstance(noisy, NoisyRows)
    assert noisy.rows_per_record == 3


@pytest.mark.parametrize("words", [["privacy=sample"], ["task=textures", "privacy=sample"]])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sample_rate": 0.123}, "sample_rate=0.123"),
        ({"steps": 999}, "steps=999"),
        *(({"noise_multiplier": s}, "too little") for s in (0.0, -1.0, 9e-3, math.inf, math.nan)),
    ],
)
def test_what_a_clients_settings_do_not_imply_is_refused(
    words: list[str], change: dict[str, float], said: str
) -> None:
    config = compose(words)
    with pytest.raises(ConfigError, match=rf"the server asks for .*{said}"):
        record_mechanism(config, ordered(config, **change), 120)


def test_a_clients_own_noise_is_the_least() -> None:
    words = ["privacy=sample", "recipe=none", "privacy.sample.noise_multiplier=2.0"]
    config = compose(words)
    with pytest.raises(ConfigError, match=r"noise_multiplier=1\.9, too little"):
        record_mechanism(config, ordered(config, noise_multiplier=1.9), 120)
    record_mechanism(config, ordered(config, noise_multiplier=2.0), 120)
    with pytest.raises(ConfigError, match="the server asks for"):
        record_mechanism(config, ordered(config, 120, noise_multiplier=2.0), 9000)


def test_the_step_is_the_tasks(small: Callable[..., Config], tiny: Callable[..., Config]) -> None:
    config = small("federation.server_optimizer=fedadam", "federation.server_lr=0.25")
    data, parts = load_data(config.data, seed=config.seed), Assembly()
    learner = parts.learner(config, data, {})
    step = server_step(config, learner, None, make_sampler(config))
    assert isinstance(step, ServerOptimizer)
    assert (step.name, step.lr) == ("fedadam", 0.25)
    for words, kind in (([], BankStep), (["privacy=sample", ROWS[2]], NoisyRowsStep)):
        config = tiny(*words)
        data = load_data(config.data, seed=config.seed)
        plan = planned(config) if words else None
        made = server_step(config, parts.learner(config, data, NAMES), plan, make_sampler(config))
        assert type(made) is kind


def test_a_bank_without_privacy_and_a_mechanism_with(tiny: Callable[..., Config]) -> None:
    private, plain = detector_settings(tiny("privacy=sample")), detector_settings(tiny())
    assert plain.mechanism == BANK_MECHANISM
    assert private.mechanism == str(tiny("privacy=sample").anomaly.mechanism) != BANK_MECHANISM


def test_a_runtime_has_the_clients_half_of_the_same_settings(small: Callable[..., Config]) -> None:
    config = small("privacy=sample")
    runtime = client_runtime(config)
    order = ordered(config)
    assert runtime.config is config
    assert runtime.rounds.make_mechanism(order, 120) == record_mechanism(config, order, 120)


@pytest.mark.parametrize("words", [["privacy=user"], ["privacy=sample", *FULL]])
def test_less_noise_in_the_sum_than_is_charged_is_refused(words: list[str]) -> None:
    norms = [f"privacy.{words[0][8:]}.max_grad_norm=1"]
    config = compose([*words, *norms, "privacy.noise=shares", "federation.num_clients=4"])
    asked = RecordOrder(noise_multiplier=2.0, sample_rate=1.0, steps=1, grad_mode="hooks")
    records = None
    if config.privacy.style.protects_records:
        records = record_mechanism(config, asked, 100)
    order = RoundOrder(
        input_shape=(30,), num_classes=2, run="r", streams="s", phase=0,
        style=str(config.privacy.style), client_noise=2.0, noise_std=2.1,
    )  # fmt: skip
    made = own_answer(config, order, records, weights=10, count=100, shares=2)
    assert made is not None
    assert made.noise.own_std == pytest.approx(2.1 / 2**0.5)
    for std in (1.99, None, float("inf"), float("nan")):
        with pytest.raises(ConfigError, match="too little"):
            own_answer(
                config, replace(order, noise_std=std), records, weights=10, count=100, shares=2
            )
    if records is None:
        with pytest.raises(ConfigError, match="client_noise"):
            own_answer(
                config, replace(order, client_noise=1e-3), records, weights=10, count=9, shares=2
            )
